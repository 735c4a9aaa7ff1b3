#!/usr/bin/env python
"""Click-train detector for sperm whales: half precision, two micro-batches a step."""
import argparse
import itertools

import torch
from torch import nn


def synth_click(generator, length):
    noise = torch.randn(length, generator=generator) * 0.3
    label = int(torch.randint(0, 2, (1,), generator=generator))
    if label:
        period = int(torch.randint(9, 14, (1,), generator=generator))
        noise[::period] += 2.0
    return noise, label


class ClickNet(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.fold = nn.Unfold((1, 16), stride=(1, 8))
        self.frame = nn.Linear(16, width)
        self.gate = nn.Linear(16, width)
        self.out = nn.Linear(width, 1)

    def forward(self, wave):
        frames = self.fold(wave[:, None, None, :]).transpose(1, 2)
        hidden = torch.tanh(self.frame(frames)) * torch.sigmoid(self.gate(frames))
        return self.out(hidden.amax(1)).squeeze(-1)


class Trainer:
    def __init__(self, args):
        self.args = args
        self.net = ClickNet(args.length, args.width)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=args.lr)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: 1.0 / (1 + 0.02 * n))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=args.scale, growth_interval=9)
        self.g = torch.Generator().manual_seed(args.seed)

    def batches(self):
        while True:
            waves, labels = zip(*(synth_click(self.g, self.args.length) for _ in range(self.args.batch)))
            yield torch.stack(waves), torch.tensor(labels, dtype=torch.float32)

    def update(self, group):
        total = 0.0
        for wave, label in group:
            with torch.autocast("cpu", dtype=torch.float16):
                logit = self.net(wave)
            loss = nn.functional.binary_cross_entropy_with_logits(logit.float(), label) / self.args.accumulate
            self.scaler.scale(loss).backward()
            total += loss.item()
        self.scaler.step(self.optimizer)
        before = self.scaler.get_scale()
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scaler.get_scale() >= before:
            self.scheduler.step()
        return total

    def run(self):
        stream = self.batches()
        for n in range(1, self.args.steps + 1):
            loss = self.update(itertools.islice(stream, self.args.accumulate))
            print(f"[{n:03d}] bce={loss!r} scale={self.scaler.get_scale():g}")
        print(float(sum(p.detach().double().sum() for p in self.net.parameters())))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--length", type=int, default=128)
    p.add_argument("--width", type=int, default=24)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--steps", type=int, default=24)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--scale", type=float, default=2.0 ** 23)
    p.add_argument("--seed", type=int, default=5)
    args = p.parse_args()
    torch.manual_seed(args.seed)
    Trainer(args).run()


if __name__ == "__main__":
    main()
