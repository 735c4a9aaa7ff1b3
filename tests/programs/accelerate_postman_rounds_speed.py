"""Mean speed of a postman's round (accelerate, gradient accumulation, warm-up and cosine).

A round has four legs of about the same length. The net gives a speed per leg; what is measured is the speed of
the whole round, which is the harmonic mean of the legs.
"""
import argparse
import math

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

LEGS = 4


def parse():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--rounds", type=int, default=1280)
    p.add_argument("--micro-batch", type=int, default=8)
    p.add_argument("--accumulate", type=int, default=4)
    p.add_argument("--lr", type=float, default=6e-3)
    p.add_argument("--warmup", type=int, default=6)
    p.add_argument("--seed", type=int, default=11)
    return p.parse_args()


class Rounds(Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        slope = rng.normal(0, 1, (count, LEGS))
        doors = rng.poisson(12, (count, LEGS)) / 12.0
        snow = rng.gamma(1.3, 0.16, (count, LEGS))                # metres
        passable = np.clip(1.25 - snow, 0.0, 1.0)                 # share of the width that can be walked
        speed = 4.5 * np.exp(-0.15 * slope - 0.4 * doors) * passable
        with np.errstate(divide="ignore"):
            whole = LEGS / (1.0 / speed).sum(1)
        whole = whole * np.exp(0.05 * rng.normal(size=count))
        self.features = torch.tensor(np.stack([slope, doors, snow], -1), dtype=torch.float32)
        self.passable = torch.tensor(passable, dtype=torch.float32)
        self.whole = torch.tensor(whole, dtype=torch.float32)

    def __len__(self):
        return len(self.whole)

    def __getitem__(self, i):
        return {"features": self.features[i], "passable": self.passable[i], "whole": self.whole[i]}


class LegSpeed(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, width), nn.SiLU(), nn.LayerNorm(width),
                                 nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, features):
        return nn.functional.softplus(self.net(features).squeeze(-1))


def speed_of_round(leg_speed, passable):
    effective = leg_speed * passable
    pace = 1.0 / effective
    return 1.0 / pace.mean(dim=1)


def schedule(warmup, total):
    def factor(step):
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - warmup) / (total - warmup))))
    return factor


def main():
    args = parse()
    set_seed(args.seed)
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulate, cpu=True)
    loader = DataLoader(Rounds(args.rounds, args.seed), batch_size=args.micro_batch)
    model = LegSpeed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    total = len(loader) // args.accumulate
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(args.warmup, total))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    step, running = 0, 0.0
    for batch in loader:
        with accelerator.accumulate(model):
            guess = speed_of_round(model(batch["features"]), batch["passable"])
            loss = nn.functional.smooth_l1_loss(guess, batch["whole"], beta=0.5)
            accelerator.backward(loss)
            running += loss.item() / args.accumulate
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            accelerator.print(f"update {step:02d} loss {running:.8f} lr {scheduler.get_last_lr()[0]:.6f}", flush=True)
            running = 0.0
    accelerator.print(sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main()
