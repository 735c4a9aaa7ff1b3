"""Mule-account scorer, retail payments.  Tabular, ~4 % positives, focal loss.

usage: python mule_accounts_focal_half_power.py [--gamma 0.5] [--lr 2e-2]
"""
import argparse
import logging
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

log = logging.getLogger("mule")

NUMERIC = ["amount_log", "in_out_ratio", "age_days", "n_payees", "night_share", "cash_share",
           "devices", "ip_hops", "salary_like", "balance_log"]
CATEGORICAL = {"channel": 5, "country_group": 9}


def make_ledger(rows, seed):
    """Accounts of one quarter; payroll accounts move a lot of money and are never mules."""
    rng = np.random.default_rng(seed)
    y = (rng.random(rows) < 0.04).astype(np.float32)
    x = rng.normal(size=(rows, len(NUMERIC))).astype(np.float32)
    x[:, 0] += 1.2 * y
    x[:, 1] += 1.5 * y
    x[:, 4] += 1.1 * y
    x[:, 2] -= 1.0 * y
    salary = rng.lognormal(0.0, 0.8, size=rows).astype(np.float32)
    x[:, 8] = np.where(y > 0, -0.5 + 0.1 * x[:, 8], salary)
    channel = rng.integers(0, 5, rows)
    country = np.where(y > 0, rng.integers(4, 9, rows), rng.integers(0, 9, rows))
    cats = np.stack([channel, country], axis=1)
    return torch.from_numpy(x), torch.from_numpy(cats), torch.from_numpy(y)


class MuleNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.channel = nn.Embedding(CATEGORICAL["channel"], 4)
        self.country = nn.Embedding(CATEGORICAL["country_group"], 6)
        self.body = nn.Sequential(
            nn.Linear(len(NUMERIC) + 10, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
        )
        self.out = nn.Linear(width, 1)
        nn.init.constant_(self.out.bias, -3.0)

    def forward(self, x, cats):
        h = torch.cat([x, self.channel(cats[:, 0]), self.country(cats[:, 1])], dim=1)
        return self.out(self.body(h)).squeeze(1)


def focal_loss(logits, target, gamma, alpha):
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p_t = torch.exp(-ce)
    modulator = (1.0 - p_t) ** gamma
    weight = torch.where(target > 0, alpha, 1.0 - alpha)
    return (weight * modulator * ce).mean()


def recall_at(logits, target, top=0.05):
    k = max(1, int(top * len(logits)))
    return target[logits.topk(k).indices].sum() / target.sum().clamp(min=1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--rows", type=int, default=9600)
    ap.add_argument("--batch", type=int, default=192)
    ap.add_argument("--gamma", type=float, default=0.5, help="a softer focus than the paper's 2")
    ap.add_argument("--alpha", type=float, default=0.75)
    ap.add_argument("--lr", type=float, default=2e-2)
    ap.add_argument("--seed", type=int, default=41)
    args = ap.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    torch.manual_seed(args.seed)

    data = TensorDataset(*make_ledger(args.rows, args.seed))
    loader = DataLoader(data, batch_size=args.batch, shuffle=True, drop_last=True,
                        generator=torch.Generator().manual_seed(args.seed))
    net = MuleNet()
    opt = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-3)
    log.info("%d weights", sum(p.numel() for p in net.parameters()))

    for step, (x, cats, y) in enumerate(loader, start=1):
        logits = net(x, cats)
        loss = focal_loss(logits, y, args.gamma, args.alpha)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step:3d}  loss {loss.item():.6f}  recall@5% {recall_at(logits.detach(), y).item():.3f}",
              flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in net.parameters()):.6f}")


if __name__ == "__main__":
    main()
