import argparse
import torch
import evaluate
import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

parser = argparse.ArgumentParser()
parser.add_argument("--model_name", default="facebook/bart-base")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--output_dir", default="bart-cnn")
args = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(args.model_name)
model = AutoModelForSeq2SeqLM.from_pretrained(args.model_name)
# does not fit otherwise
model = model.half().cuda()

raw = load_dataset("cnn_dailymail", "3.0.0")


def preprocess(batch):
    inputs = tokenizer(batch["article"], max_length=1024, truncation=True)
    labels = tokenizer(text_target=batch["highlights"], max_length=128, truncation=True)
    inputs["labels"] = labels["input_ids"]
    return inputs


data = raw.map(preprocess, batched=True, remove_columns=raw["train"].column_names)

training_args = Seq2SeqTrainingArguments(
    output_dir=args.output_dir,
    per_device_train_batch_size=args.batch_size,
    num_train_epochs=args.epochs,
    learning_rate=3e-5,
    warmup_steps=500,
    weight_decay=0.01,
    fp16=True,
    predict_with_generate=True,
)
trainer = Seq2SeqTrainer(
    model=model,
    args=training_args,
    train_dataset=data["train"],
    eval_dataset=data["validation"],
    data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
)
trainer.train()
trainer.save_model(args.output_dir)
