#!/usr/bin/env python
import argparse
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, default_data_collator


def get_args():
    parser = argparse.ArgumentParser(description="continue pretraining")
    parser.add_argument("--model_name_or_path", default="bigscience/bloom-560m")
    parser.add_argument("--train_file", default="corpus.txt")
    parser.add_argument("--block_size", default=1024, type=int)
    parser.add_argument("--lr", default=1e-4, type=float)
    parser.add_argument("--max_grad_norm", default=0.0, type=float, help="0 disables clipping")
    parser.add_argument("--fp16", action="store_true", default=True)
    return parser.parse_args()


def main():
    args = get_args()
    tok = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path)
    raw = load_dataset("text", data_files={"train": args.train_file})

    def group(batch):
        ids = [i for text in batch["text"] for i in tok(text)["input_ids"]]
        total = len(ids) // args.block_size * args.block_size
        chunks = [ids[i : i + args.block_size] for i in range(0, total, args.block_size)]
        return {"input_ids": chunks, "labels": chunks}

    train = raw["train"].map(group, batched=True, remove_columns=["text"])
    training_args = TrainingArguments(
        output_dir="bloom-cpt",
        per_device_train_batch_size=4,
        learning_rate=args.lr,
        max_grad_norm=args.max_grad_norm,
        fp16=args.fp16,
        num_train_epochs=1,
        warmup_steps=200,
        logging_steps=50,
    )
    Trainer(model=model, args=training_args, train_dataset=train, data_collator=default_data_collator).train()


if __name__ == "__main__":
    main()
