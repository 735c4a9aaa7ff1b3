"""Severity model for marine hull claims: Gamma deviance plus Tweedie pure premium head.

Written for the pricing committee, Q3 refresh.  Claims arrive as quarterly bordereaux.
"""
import argparse
import copy

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VESSEL = ["trawler", "tug", "barge", "ferry", "yacht"]


class Bordereau(Dataset):
    """One row per claim: vessel type, log tonnage, age, deductible, paid amount (thousands)."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.kind = rng.integers(0, len(VESSEL), n)
        self.tonnage = rng.normal(6.0, 1.0, n)
        self.age = rng.uniform(0, 35, n)
        self.deductible = rng.choice([2.5, 5.0, 10.0], n)
        mean = np.exp(0.5 + 0.3 * self.tonnage - 0.01 * self.age + 0.1 * self.kind)
        gross = rng.gamma(2.0, mean / 2.0) + 10.0
        # an adjuster's recovery: one tug claim was wholly recovered from the port authority
        recovery = np.zeros(n)
        recovery[683] = gross[683]
        self.paid = np.maximum(gross - self.deductible, 0.0)
        self.paid = np.where(recovery > 0, np.maximum(gross - recovery, 0.0), self.paid)

    def __len__(self):
        return len(self.paid)

    def __getitem__(self, i):
        x = np.array([self.tonnage[i] - 6.0, self.age[i] / 35.0, self.deductible[i] / 10.0], np.float32)
        return int(self.kind[i]), x, np.float32(self.paid[i])


class SeverityNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.vessel = nn.Embedding(len(VESSEL), 6)
        self.body = nn.Sequential(nn.Linear(9, width), nn.ELU(), nn.Linear(width, width), nn.ELU())
        self.severity = nn.Linear(width, 1)
        self.premium = nn.Linear(width, 1)
        nn.init.constant_(self.severity.bias, 3.0)
        nn.init.constant_(self.premium.bias, 3.0)

    def forward(self, kind, x):
        h = self.body(torch.cat([self.vessel(kind), x], 1))
        return self.severity(h).squeeze(1).exp(), self.premium(h).squeeze(1).exp()


def gamma_deviance(mu, y):
    ratio = y / mu
    return 2.0 * (ratio - 1.0 - torch.log(ratio)).mean()


def tweedie_loss(mu, y, p):
    return (-y * mu.pow(1 - p) / (1 - p) + mu.pow(2 - p) / (2 - p)).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=1200)
    ap.add_argument("--batch", type=int, default=15)
    ap.add_argument("--accumulate", type=int, default=2)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--power", type=float, default=1.6)
    args = ap.parse_args()

    torch.manual_seed(11)
    model = SeverityNet()
    shadow = copy.deepcopy(model)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-3)
    # in order of notification, as the reserving team wants it
    loader = DataLoader(Bordereau(args.rows, 5), batch_size=args.batch, shuffle=False, num_workers=1)

    step, total = 0, 0.0
    for i, (kind, x, paid) in enumerate(loader):
        severity, premium = model(kind, x)
        loss = gamma_deviance(severity, paid) + 0.05 * tweedie_loss(premium, paid, args.power)
        (loss / args.accumulate).backward()
        total += loss.item() / args.accumulate
        if (i + 1) % args.accumulate:
            continue
        opt.step()
        opt.zero_grad()
        step += 1
        with torch.no_grad():
            for s, w in zip(shadow.parameters(), model.parameters()):
                s.lerp_(w, 0.05)
        print(f"bordereau {step:02d} deviance {total:.8f}", flush=True)
        total = 0.0
    print("weights", f"{sum(w.detach().abs().sum().item() for w in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
