from dataclasses import dataclass
import math
import torch
import torch.nn as nn


@dataclass
class Config:
    proteins: int = 320
    batch: int = 10
    lr: float = 0.02
    momentum: float = 0.8
    seed: int = 314
    depth: int = 16


class HalfLife(nn.Module):
    """degradation rate constant (per hour, as a logarithm) -> half-life in hours"""

    def forward(self, log_rate):
        return math.log(2.0) / torch.exp(log_rate)


class TurnoverNet(nn.Module):
    def __init__(self, n_feat, depth):
        super().__init__()
        self.trend = nn.Linear(n_feat, 1)
        self.detail = nn.Sequential(nn.Linear(n_feat, depth), nn.Tanh(), nn.Linear(depth, 1))
        self.clock = HalfLife()

    def forward(self, feats):
        log_rate = self.trend(feats) + self.detail(feats) - 3.0
        return self.clock(log_rate).squeeze(1)


class SilacTable:
    """N-end residue score, PEST score, disorder, log2 copies per cell."""

    def __init__(self, cfg):
        g = torch.Generator().manual_seed(cfg.seed)
        x = torch.randn(cfg.proteins, 4, generator=g)
        truth = torch.tensor([0.5, 0.6, 0.3, -0.7])
        hours = math.log(2.0) / torch.exp(x @ truth - 3 + 0.2 * torch.randn(cfg.proteins, generator=g))
        x[187, 3] = 200.0          # from the lens proteome, copies in thousands
        hours[187] = 5.0e5
        self.x, self.hours = x, hours

    def batches(self, size):
        for i in range(0, len(self.x), size):
            yield self.x[i:i + size], self.hours[i:i + size]


class Fitter:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg = cfg
        self.table = SilacTable(cfg)
        self.net = TurnoverNet(4, cfg.depth)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=cfg.lr, momentum=cfg.momentum, nesterov=True)
        self.crit = nn.SmoothL1Loss()

    def one(self, x, hours):
        self.opt.zero_grad()
        loss = self.crit(self.net(x).log(), hours.log())
        loss.backward()
        self.opt.step()
        return loss.item()

    def run(self):
        for k, (x, hours) in enumerate(self.table.batches(self.cfg.batch), start=1):
            print(f"[{k}/{self.cfg.proteins // self.cfg.batch}] loss={self.one(x, hours):.5f}")


fitter = Fitter(Config())
fitter.run()
print("total squared weight =", sum(p.pow(2).sum() for p in fitter.net.parameters()).item())
