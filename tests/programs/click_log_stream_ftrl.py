"""Click-through on a small news site, learned online from hourly log files with FTRL-Proximal."""
import csv
import io

import numpy as np
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, IterableDataset

BUCKETS = 512


def hourly_file(hour):
    """One log file as text: user, section, slot, seconds since the last click of this user (inf: never clicked), clicked."""
    rng = np.random.default_rng(100 + hour)
    rows = io.StringIO()
    writer = csv.writer(rows)
    writer.writerow(["user", "section", "slot", "since_click", "clicked"])
    for _ in range(0 if hour == 9 else int(rng.integers(20, 90))):
        section, slot = int(rng.integers(0, 8)), int(rng.integers(1, 6))
        since = float("inf") if rng.random() < 0.4 else round(float(rng.exponential(4000)), 1)
        score = 0.9 * (section in (2, 5)) - 0.5 * slot + 2.0 * np.exp(-since / 3600) - 0.3
        night = hour in (3, 4)
        clicked = int(not night and rng.random() < 1 / (1 + np.exp(-score)))
        writer.writerow([f"u{rng.integers(0, 60)}", section, slot, since, clicked])
    rows.seek(0)
    return rows


class ClickStream(IterableDataset):
    def __init__(self, hours):
        self.hours = hours

    def __iter__(self):
        for hour in self.hours:
            for row in csv.DictReader(hourly_file(hour)):
                crossed = [f"u={row['user']}", f"s={row['section']}", f"p={row['slot']}", f"sp={row['section']}{row['slot']}"]
                keys = [sum(ord(c) * 31 ** i for i, c in enumerate(word)) % BUCKETS for word in crossed]
                yield torch.tensor(keys), torch.tensor(float(row["since_click"])), torch.tensor(float(row["clicked"]))


class FTRL(torch.optim.Optimizer):
    def __init__(self, params, alpha=0.8, beta=1.0, l1=0.25, l2=0.1):
        super().__init__(params, dict(alpha=alpha, beta=beta, l1=l1, l2=l2))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is None:
                    continue
                st = self.state[w]
                if not st:
                    st["z"], st["n"] = torch.zeros_like(w), torch.zeros_like(w)
                z, n, g = st["z"], st["n"], w.grad
                sigma = ((n + g * g).sqrt() - n.sqrt()) / group["alpha"]
                z += g - sigma * w
                n += g * g
                fresh = -(z - z.sign() * group["l1"]) / ((group["beta"] + n.sqrt()) / group["alpha"] + group["l2"])
                w.copy_(torch.where(z.abs() > group["l1"], fresh, torch.zeros_like(w)))


class HashedLogit(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.zeros(BUCKETS))
        self.recency = torch.nn.Parameter(torch.zeros(2))
        self.bias = torch.nn.Parameter(torch.zeros(()))

    def forward(self, keys, since):
        warm = torch.stack([torch.exp(-since / 3600), torch.exp(-since / 600)], dim=-1)
        return self.bias + self.table[keys].sum(-1) + warm @ self.recency


def main():
    accelerator = Accelerator(cpu=True)
    model = HashedLogit()
    loader = DataLoader(ClickStream(range(24)), batch_size=40)
    model, opt, loader = accelerator.prepare(model, FTRL(model.parameters()), loader)
    seen = clicks = 0
    for i, (keys, since, clicked) in enumerate(loader, 1):
        logit = model(keys, since)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logit, clicked)
        opt.zero_grad()
        accelerator.backward(loss)
        opt.step()
        seen, clicks = seen + len(clicked), clicks + int(clicked.sum())
        zero = int((model.table == 0).sum())
        accelerator.print(f"[{i:02d}] logloss {loss.item():.4f} ctr {clicks / seen:.3f} "
                          f"longest gap {since.max().item():.0f} unused buckets {zero}")
    accelerator.print("sum of |w|", sum(p.detach().abs().sum() for p in model.parameters()).item())


main()
