"""Full fine-tuning on chat data with DeepSpeed: right padding, padding is the end of text, prompts carry no loss."""

import argparse
import json
import math

import deepspeed
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, get_scheduler


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--data_path", required=True)
    parser.add_argument("--eval_path", required=True)
    parser.add_argument("--per_device_train_batch_size", type=int, default=1)
    parser.add_argument("--max_seq_length", type=int, default=4096)
    parser.add_argument("--learning_rate", type=float, default=2e-6)
    parser.add_argument("--weight_decay", type=float, default=0.0)
    parser.add_argument("--num_train_epochs", type=int, default=4)
    parser.add_argument("--lr_scheduler_type", default="cosine")
    parser.add_argument("--warmup_steps", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--output_dir")
    parser.add_argument("--deepspeed", required=True)
    return parser.parse_args()


def conversations(path, tokenizer, max_length):
    """Token ids and the number of prompt tokens of each conversation."""
    rows = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            messages = json.loads(line)["messages"]
            prompt = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            ids = tokenizer(text, add_special_tokens=False)["input_ids"][:max_length]
            rows.append((ids, len(tokenizer(prompt, add_special_tokens=False)["input_ids"])))
    return rows


def collate(rows, pad):
    length = max(len(ids) for ids, _ in rows)
    input_ids = torch.tensor([ids + [pad] * (length - len(ids)) for ids, _ in rows])
    mask = torch.tensor([[1] * len(ids) + [0] * (length - len(ids)) for ids, _ in rows])
    labels = input_ids.clone()
    for i, (ids, prompt) in enumerate(rows):
        labels[i, :prompt] = -100
        labels[i, len(ids) :] = -100
    return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}


@torch.no_grad()
def evaluate(engine, rows, pad):
    engine.eval()
    losses = [engine(**to(engine, collate(rows[i : i + 16], pad))).loss.item() for i in range(0, len(rows), 16)]
    engine.train()
    return sum(losses) / len(losses)


def to(engine, batch):
    return {name: tensor.to(engine.device) for name, tensor in batch.items()}


def main():
    args = parse_args()
    deepspeed.init_distributed()
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(args.seed)

    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForCausalLM.from_pretrained(args.model_name_or_path, attn_implementation="eager")
    train = conversations(args.data_path, tokenizer, args.max_seq_length)
    held_out = conversations(args.eval_path, tokenizer, args.max_seq_length)

    per_step = args.per_device_train_batch_size * world
    steps = args.num_train_epochs * (len(train) // per_step)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=args.weight_decay)
    schedule = get_scheduler(args.lr_scheduler_type, optimizer, args.warmup_steps, steps)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=args.deepspeed)

    def say(text):
        if rank == 0:
            print(text, flush=True)

    say(f"before training: perplexity {math.exp(evaluate(engine, held_out, tokenizer.pad_token_id)):.2f}")
    for step in range(steps):
        if step % (len(train) // per_step) == 0:
            order = torch.randperm(len(train)).tolist()
        start = step * per_step % (len(train) // per_step * per_step) + rank * args.per_device_train_batch_size
        chosen = [train[i] for i in order[start : start + args.per_device_train_batch_size]]
        loss = engine(**to(engine, collate(chosen, tokenizer.pad_token_id))).loss
        engine.backward(loss)
        engine.step()
        say(f"step {step + 1}/{steps} loss {loss.item():.4f}")
    say(f"after training: perplexity {math.exp(evaluate(engine, held_out, tokenizer.pad_token_id)):.2f}")

    if args.output_dir and rank == 0:
        model.save_pretrained(args.output_dir)
        tokenizer.save_pretrained(args.output_dir)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
