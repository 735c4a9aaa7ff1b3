import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-1.5B", torch_dtype="auto", attn_implementation="sdpa")
tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-1.5B")
trainer = SFTTrainer(
    model=model,
    train_dataset=load_dataset("trl-lib/Capybara", split="train"),
    processing_class=tokenizer,
    args=SFTConfig(
        output_dir="qwen-sft",
        bf16=True,
        learning_rate=2e-5,
        per_device_train_batch_size=8,
        num_train_epochs=1,
        lr_scheduler_type="cosine",
        warmup_ratio=0.03,
    ),
)
trainer.train()
