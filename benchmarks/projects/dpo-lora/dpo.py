import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer

if __name__ == "__main__":
    model = AutoModelForCausalLM.from_pretrained("HuggingFaceH4/zephyr-7b-beta", torch_dtype=torch.bfloat16, use_cache=False)
    tokenizer = AutoTokenizer.from_pretrained("HuggingFaceH4/zephyr-7b-beta")
    peft_config = LoraConfig(r=128, lora_alpha=128, lora_dropout=0.05, bias="none", task_type="CAUSAL_LM", target_modules="all-linear")
    args = DPOConfig(output_dir="zephyr-dpo", beta=0.01, bf16=True, learning_rate=5e-6, num_train_epochs=1,
                     per_device_train_batch_size=4, gradient_accumulation_steps=4, gradient_checkpointing=True,
                     gradient_checkpointing_kwargs={"use_reentrant": False}, lr_scheduler_type="cosine", warmup_ratio=0.1, optim="adamw_torch")
    DPOTrainer(model, ref_model=None, args=args, train_dataset=load_dataset("HuggingFaceH4/ultrafeedback_binarized", split="train_prefs"),
               processing_class=tokenizer, peft_config=peft_config).train()
