"""Teach a base model two new markers for tool calls, with LoRA."""
import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForSeq2Seq, Trainer, TrainingArguments

MODEL = "mistralai/Mistral-7B-v0.3"
tokenizer = AutoTokenizer.from_pretrained(MODEL)
tokenizer.add_special_tokens({"pad_token": "<pad>", "additional_special_tokens": ["<tool>", "</tool>"]})
model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16)
model.resize_token_embeddings(len(tokenizer))
model = get_peft_model(
    model, LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "v_proj"], lora_dropout=0.05, task_type="CAUSAL_LM")
)


def encode(row):
    prompt = tokenizer(row["question"])["input_ids"]
    answer = tokenizer("<tool>" + row["call"] + "</tool>" + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
    return {"input_ids": prompt + answer, "labels": [-100] * len(prompt) + answer, "attention_mask": [1] * (len(prompt) + len(answer))}


data = load_dataset("json", data_files="tools.jsonl", split="train").map(encode, remove_columns=["question", "call"])
args = TrainingArguments("tools-lora", bf16=True, learning_rate=2e-4, num_train_epochs=3, per_device_train_batch_size=4, logging_steps=10)
Trainer(model, args, train_dataset=data, data_collator=DataCollatorForSeq2Seq(tokenizer)).train()
