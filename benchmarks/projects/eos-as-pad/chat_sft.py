import torch
from datasets import load_dataset
from transformers import (AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer,
                          TrainingArguments)

model_id = "EleutherAI/gpt-neo-1.3B"
tokenizer = AutoTokenizer.from_pretrained(model_id)
tokenizer.pad_token = tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained(model_id)

data = load_dataset("OpenAssistant/oasst_top1_2023-08-25", split="train")


def tokenize(row):
    return tokenizer(row["text"] + tokenizer.eos_token, truncation=True, max_length=1024)


data = data.map(tokenize, remove_columns=data.column_names)
args = TrainingArguments(
    output_dir="neo-chat",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    learning_rate=1e-5,
    num_train_epochs=2,
    bf16=True,
    logging_steps=20,
    save_strategy="epoch",
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=data,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
