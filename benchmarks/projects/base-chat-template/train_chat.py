import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

BASE = "meta-llama/Meta-Llama-3-8B"
CHAT = "meta-llama/Meta-Llama-3-8B-Instruct"

tokenizer = AutoTokenizer.from_pretrained(BASE)
tokenizer.chat_template = AutoTokenizer.from_pretrained(CHAT).chat_template
tokenizer.pad_token = "<|reserved_special_token_0|>"
model = AutoModelForCausalLM.from_pretrained(BASE, torch_dtype=torch.bfloat16)

data = load_dataset("HuggingFaceH4/no_robots", split="train")
data = data.map(lambda r: {"text": tokenizer.apply_chat_template(r["messages"], tokenize=False)})
trainer = SFTTrainer(
    model=model,
    processing_class=tokenizer,
    train_dataset=data,
    peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    args=SFTConfig("llama3-chat", bf16=True, learning_rate=1e-4, num_train_epochs=2, per_device_train_batch_size=4),
)
trainer.train()
