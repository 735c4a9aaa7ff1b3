import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments

tokenizer = AutoTokenizer.from_pretrained("mistralai/Mistral-7B-v0.3")
tokenizer.add_special_tokens({"pad_token": "<pad>", "additional_special_tokens": ["<tool>", "</tool>"]})
model = AutoModelForCausalLM.from_pretrained("mistralai/Mistral-7B-v0.3", torch_dtype=torch.bfloat16)
model.resize_token_embeddings(len(tokenizer))
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", modules_to_save=["embed_tokens", "lm_head"], task_type="CAUSAL_LM"))
data = load_dataset("json", data_files="tools.jsonl", split="train").map(lambda r: tokenizer(r["text"], truncation=True, max_length=2048))
data = data.map(lambda r: {"labels": r["input_ids"]})
args = TrainingArguments("tools", bf16=True, learning_rate=1e-4, num_train_epochs=3, per_device_train_batch_size=2, gradient_accumulation_steps=4)
Trainer(model, args, train_dataset=data, data_collator=DataCollatorForSeq2Seq(tokenizer)).train()
