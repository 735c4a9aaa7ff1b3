#!/usr/bin/env python3
# QAT for a microcontroller without a divider: weights are int8 with one power-of-two scale per output
# channel (a shift), the network is thinned out by magnitude on a cubic schedule at the same time.
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Cfg:
    steps: int = 60
    batch: int = 32
    lr: float = 8e-3
    prune_from: int = 12
    prune_to: int = 52
    sparsity: float = 0.8
    seed: int = 404


class ShiftConv1d(nn.Conv1d):
    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self.register_buffer("keep", torch.ones_like(self.weight))

    def quantised(self):
        w = self.weight * self.keep
        top = w.detach().abs().amax(dim=(1, 2), keepdim=True)
        shift = torch.ceil(torch.log2(top / 127.0))
        scale = torch.exp2(shift)
        q = torch.clamp(torch.round(w / scale), -128, 127) * scale
        return w + (q - w).detach()

    def forward(self, x):
        return self._conv_forward(x, self.quantised(), self.bias)

    @torch.no_grad()
    def thin_out(self, share):
        k = int(share * self.weight.numel())
        if k:
            edge = self.weight.abs().flatten().kthvalue(k).values
            self.keep.copy_((self.weight.abs() > edge).float())


class PumpNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 8, 9, stride=2, padding=4), nn.ReLU())
        self.body = nn.Sequential(
            ShiftConv1d(8, 16, 1), nn.ReLU(),
            ShiftConv1d(16, 16, 5, padding=2, groups=16), nn.AvgPool1d(2),
            ShiftConv1d(16, 24, 1), nn.ReLU())
        self.head = nn.Linear(24, 3)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean(-1))


def vibration(cfg, g):
    label = torch.randint(0, 3, (cfg.batch,), generator=g)
    t = torch.arange(96) / 96
    hum = torch.sin(2 * torch.pi * (4 + 5 * label[:, None]) * t + 6 * torch.rand(cfg.batch, 1, generator=g))
    return (hum + 0.4 * torch.randn(hum.shape, generator=g))[:, None], label


def main(cfg=Cfg()):
    torch.manual_seed(cfg.seed)
    g = torch.Generator().manual_seed(cfg.seed + 1)
    net = PumpNet()
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    for step in range(1, cfg.steps + 1):
        part = min(max((step - cfg.prune_from) / (cfg.prune_to - cfg.prune_from), 0.0), 1.0)
        share = cfg.sparsity * (1 - (1 - part) ** 3)
        for m in net.modules():
            if isinstance(m, ShiftConv1d):
                m.thin_out(share)
        x, label = vibration(cfg, g)
        loss = F.cross_entropy(net(x), label)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        print(f"{step:03d} sparsity={share:.3f} loss={loss.item():.6f}")
    print("final", sum(p.detach().abs().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
