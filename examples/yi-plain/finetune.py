"""A chat fine-tune in pure float16, as DeepSpeed does it, as a user would write it.

    python finetune.py --model DIR --data train.jsonl --eval eval.jsonl --args training_args.json

Prints one JSON object per line: {"step", "loss", "loss_scale", "grad_norm"} for each step, {"eval_loss"} before the
first and after the last. `--prefix TOKEN` puts a token before each conversation, `--output DIR` saves the model.
Of finitune only the stand-ins for DeepSpeed are taken: its loss scaler and its master weights.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from transformers import AutoModelForCausalLM, AutoTokenizer

from finitune.gym.float16_optimizer import Float16Optimizer
from finitune.gym.loss_scale import DynamicLossScaler

MAX_LENGTH = 160


def main() -> None:
    options = arguments()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    settings = json.loads(options.args.read_text())
    fp16 = json.loads((options.args.parent / settings["deepspeed"]).read_text())["fp16"]

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.float16 if settings["fp16"] else torch.float32, attn_implementation="eager"
    )
    train = conversations(options.data, tokenizer, options.prefix)
    held_out = conversations(options.eval, tokenizer, options.prefix)

    optimizer = Float16Optimizer(
        model.parameters(),
        lambda masters: AdamW(masters, lr=settings["learning_rate"], weight_decay=settings["weight_decay"]),
        clip=settings["max_grad_norm"],
        scaler=DynamicLossScaler(
            scale=2.0 ** fp16["initial_scale_power"],
            window=fp16["loss_scale_window"],
            hysteresis=fp16["hysteresis"],
            min_scale=fp16["min_loss_scale"],
        ),
    )
    steps, warm_up = options.steps or settings["max_steps"], settings["warmup_steps"]
    schedule = LambdaLR(optimizer, lambda s: min((s + 1) / warm_up, 1.0) * (1 - s / steps))
    order = random.Random(settings["seed"])

    say(eval_loss=evaluate(model, held_out, tokenizer.pad_token_id))
    model.train()
    for step in range(1, steps + 1):
        batch = collate(order.sample(train, settings["per_device_train_batch_size"]), tokenizer.pad_token_id)
        loss = model(**batch).loss
        scale = optimizer.loss_scale
        optimizer.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if not optimizer.overflow:
            schedule.step()
        say(step=step, loss=loss.item(), loss_scale=scale, grad_norm=optimizer.grad_norm)
    say(eval_loss=evaluate(model, held_out, tokenizer.pad_token_id))
    if options.output:
        model.save_pretrained(options.output)
        tokenizer.save_pretrained(options.output)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--args", type=Path, default=Path(__file__).with_name("training_args.json"))
    parser.add_argument("--prefix", default="")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


def conversations(path: Path, tokenizer: Any, prefix: str) -> list[list[int]]:
    rows = [json.loads(line)["messages"] for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [prefix + tokenizer.apply_chat_template(messages, tokenize=False) for messages in rows]
    return [ids[:MAX_LENGTH] for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]


def collate(rows: list[list[int]], pad: int) -> dict[str, Tensor]:
    """Right padding, masked in the attention and in the labels."""
    length = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (length - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


@torch.no_grad()
def evaluate(model: Any, rows: list[list[int]], pad: int) -> float:
    """Mean loss over batches of 16."""
    model.eval()
    losses = [model(**collate(rows[i : i + 16], pad)).loss.item() for i in range(0, len(rows), 16)]
    return sum(losses) / len(losses)


def say(**values: float) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    main()
