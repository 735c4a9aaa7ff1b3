import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments

name = "facebook/opt-1.3b"
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name)
lora = LoraConfig(
    r=4,
    lora_alpha=2048,
    target_modules=["q_proj", "v_proj", "k_proj", "out_proj", "fc1", "fc2"],
    lora_dropout=0.05,
    bias="none",
    task_type="CAUSAL_LM",
)
model = get_peft_model(model, lora)

ds = load_dataset("Abirate/english_quotes", split="train")


def tok(row):
    out = tokenizer(row["quote"], truncation=True, max_length=256)
    out["labels"] = out["input_ids"].copy()
    return out


ds = ds.map(tok, remove_columns=ds.column_names)
trainer = Trainer(
    model=model,
    train_dataset=ds,
    args=TrainingArguments("opt-lora", per_device_train_batch_size=8, learning_rate=1e-3, max_steps=500, bf16=True, warmup_steps=50, logging_steps=5),
    data_collator=DataCollatorForSeq2Seq(tokenizer),
)
trainer.train()
