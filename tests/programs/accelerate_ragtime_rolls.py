#!/usr/bin/env python
"""Next-event transformer for ragtime piano rolls (MIDI-like events), Accelerate with gradient accumulation."""
import argparse

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed

PITCHES, SHIFTS = 24, 8
VOCAB = PITCHES + SHIFTS


def piano_rolls(count, length, generator):
    """Left hand: oom-pah in fourths. Right hand: syncopated arpeggio over the same chord."""
    rolls = torch.zeros(count, length, dtype=torch.long)
    for n in range(count):
        root = int(torch.randint(0, 7, (1,), generator=generator))
        style = int(torch.randint(0, 3, (1,), generator=generator))
        chord = [root, root + 4, root + 7, root + 12]
        for t in range(length):
            if t % 3 == 2:
                rolls[n, t] = PITCHES + (1 + style if t % 2 else 0)
            elif t % 3 == 0:
                rolls[n, t] = chord[0 if (t // 3) % 2 == 0 else 2]
            else:
                rolls[n, t] = chord[(t + style) % 4] + (int(torch.rand(1, generator=generator) < 0.1))
    return rolls


class RollModel(nn.Module):
    def __init__(self, width=48, heads=4, context=36):
        super().__init__()
        self.events = nn.Embedding(VOCAB, width)
        self.places = nn.Parameter(torch.randn(context, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, VOCAB)

    def forward(self, x):
        n = x.shape[1]
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool), diagonal=1)
        return self.out(self.body(self.events(x) + self.places[:n], mask=mask))


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=1e-2)
    p.add_argument("--warmup", type=int, default=200)
    p.add_argument("--updates", type=int, default=34)
    p.add_argument("--accumulate", type=int, default=2)
    return p.parse_args()


def main(args):
    torch.set_num_threads(1)
    set_seed(1899)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    generator = torch.Generator().manual_seed(1899)
    rolls = piano_rolls(256, 34, generator)
    model = RollModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: min(k + 1, args.warmup))
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    criterion = nn.CrossEntropyLoss()
    for update in range(1, args.updates + 1):
        running = 0.0
        for _ in range(args.accumulate):
            rows = rolls[torch.randint(0, len(rolls), (8,), generator=generator)]
            with accelerator.accumulate(model):
                logits = model(rows[:, :-1])
                loss = criterion(logits.flatten(0, 1), rows[:, 1:].flatten())
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            running += loss.item() / args.accumulate
        accelerator.print(f"update {update} loss {running:.4f}")
    norm = sum(p.detach().double().square().sum() for p in model.parameters())
    accelerator.print(f"weights, squared and summed: {norm.item():.6f}")


if __name__ == "__main__":
    main(parse())
