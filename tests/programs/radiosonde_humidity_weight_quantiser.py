#!/usr/bin/env python
"""4-bit weights for the humidity correction that runs on the radiosonde itself (8-bit microcontroller)."""
import argparse

import torch
from torch import nn


class ClippedRound(torch.autograd.Function):
    """w -> round(clip(w, -r, r) * n / r) * r / n, straight through inside; the range r learns from
    what is clipped."""

    @staticmethod
    def forward(ctx, w, r, bits):
        n = 2 ** (bits - 1) - 1
        clipped = w.abs() > r
        ctx.save_for_backward(w, clipped)
        return torch.round(torch.maximum(torch.minimum(w, r), -r) * n / r) * r / n

    @staticmethod
    def backward(ctx, g):
        w, clipped = ctx.saved_tensors
        grad_w = g.masked_fill(clipped, 0.0)
        outside = (g * w.sign())[clipped]
        grad_r = outside.mean()
        return grad_w, grad_r, None


class QuantLinear(nn.Module):
    def __init__(self, i, o, bits=4, sigmas=2.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) * (1.6 / i) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(o))
        self.range = nn.Parameter(sigmas * self.weight.detach().std())
        self.bits = bits

    def forward(self, x):
        w = ClippedRound.apply(self.weight, self.range, self.bits)
        return nn.functional.linear(x, w, self.bias)


class HumidityNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inp = QuantLinear(6, width)
        self.mid = QuantLinear(width, width)
        self.out = QuantLinear(width, 1, sigmas=1.5)

    def forward(self, x):
        x = torch.relu(self.inp(x))
        x = torch.relu(self.mid(x))
        return self.out(x).squeeze(-1)


def ascent(n, gen):
    """pressure, temperature, raw humidity, solar angle, ascent speed, sensor age (standardised)"""
    x = torch.randn(n, 6, generator=gen)
    y = x[:, 2] * 0.8 + 0.3 * torch.relu(-x[:, 1]) - 0.2 * x[:, 3] * x[:, 0] + 0.05 * torch.randn(n, generator=gen)
    return x, y


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--width", type=int, default=20)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--lr", type=float, default=5e-3)
    ap.add_argument("--range-lr", type=float, default=1e-2)
    ap.add_argument("--decay", type=float, default=2.0)
    ap.add_argument("--seed", type=int, default=3)
    args = ap.parse_args()

    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    net = HumidityNet(args.width)
    ranges = [p for n, p in net.named_parameters() if n.endswith("range")]
    rest = [p for n, p in net.named_parameters() if not n.endswith("range")]
    opt = torch.optim.AdamW([{"params": rest, "weight_decay": args.decay},
                             {"params": ranges, "lr": args.range_lr, "weight_decay": 0.0}], lr=args.lr)
    for step in range(1, args.steps + 1):
        x, y = ascent(64, gen)
        loss = nn.functional.huber_loss(net(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        print(f"{step:3d} huber {loss.item():.7f}", flush=True)
    print("%.6f" % sum(p.detach().abs().sum().item() for p in net.parameters()), flush=True)


if __name__ == "__main__":
    main()
