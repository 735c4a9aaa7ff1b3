import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments

tok = AutoTokenizer.from_pretrained("EleutherAI/pythia-410m")
tok.add_special_tokens({"pad_token": "<|padding|>"})
model = AutoModelForCausalLM.from_pretrained("EleutherAI/pythia-410m")
ds = load_dataset("roneneldan/TinyStories", split="train[:1%]").map(lambda r: tok(r["text"], truncation=True, max_length=512), remove_columns=["text"])
args = TrainingArguments("out", fp16=True, per_device_train_batch_size=8, learning_rate=5e-5, num_train_epochs=1, warmup_ratio=0.05)
Trainer(model, args, train_dataset=ds, data_collator=DataCollatorForLanguageModeling(tok, mlm=False)).train()
