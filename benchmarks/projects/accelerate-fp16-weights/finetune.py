import argparse
import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, default_data_collator, get_scheduler


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--model", type=str, required=True)
    p.add_argument("--lr", type=float, default=5e-5)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--block_size", type=int, default=1024)
    return p.parse_args()


def main():
    args = parse_args()
    accelerator = Accelerator(gradient_accumulation_steps=4)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, torch_dtype=torch.float16)
    raw = load_dataset("wikitext", "wikitext-2-raw-v1")

    def group(examples):
        ids = sum(tokenizer(examples["text"])["input_ids"], [])
        n = len(ids) // args.block_size * args.block_size
        chunks = [ids[i : i + args.block_size] for i in range(0, n, args.block_size)]
        return {"input_ids": chunks, "labels": [list(c) for c in chunks]}

    train = raw["train"].map(group, batched=True, remove_columns=["text"])
    loader = DataLoader(train, shuffle=True, collate_fn=default_data_collator, batch_size=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    lr_scheduler = get_scheduler("linear", optimizer, num_warmup_steps=100, num_training_steps=args.epochs * len(loader))
    model, optimizer, loader, lr_scheduler = accelerator.prepare(model, optimizer, loader, lr_scheduler)
    bar = tqdm(range(args.epochs * len(loader)), disable=not accelerator.is_local_main_process)
    for _ in range(args.epochs):
        model.train()
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            bar.update(1)
            bar.set_postfix(loss=loss.item())


if __name__ == "__main__":
    main()
