"""Which flavour shall the kiosk's screen suggest? Off-policy learning from the log of last summer's policy."""
import csv
import io
import math
import random

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

FLAVOURS = ["pistachio", "stracciatella", "lemon", "hazelnut", "fig", "liquorice"]
CONTEXT = 5


def last_summer(n, seed):
    """The log as the old recommender wrote it: one line per visit, with the probability of what it showed."""
    rng = random.Random(seed)
    taste = [[rng.gauss(0, 1) for _ in range(CONTEXT)] for _ in FLAVOURS]
    out = io.StringIO()
    sheet = csv.writer(out)
    sheet.writerow([f"x{i}" for i in range(CONTEXT)] + ["shown", "propensity", "bought"])
    for _ in range(n):
        x = [rng.gauss(0, 1) for _ in range(CONTEXT)]
        score = [sum(a * b for a, b in zip(x, t)) for t in taste]
        old = [1.05 * s for s in score]
        top = max(old)
        e = [math.exp(o - top) for o in old]
        p = [v / sum(e) for v in e]
        k = rng.choices(range(len(FLAVOURS)), p)[0]
        bought = rng.random() < 1 / (1 + math.exp(1.0 - 0.7 * score[k]))
        sheet.writerow([f"{v:.4f}" for v in x] + [FLAVOURS[k], f"{p[k]:.3f}", int(bought)])
    out.seek(0)
    return out


class Visits(Dataset):
    def __init__(self, handle):
        self.rows = list(csv.DictReader(handle))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        r = self.rows[i]
        return {
            "x": torch.tensor([float(r[f"x{j}"]) for j in range(CONTEXT)]),
            "shown": FLAVOURS.index(r["shown"]),
            "propensity": torch.tensor(float(r["propensity"])),
            "bought": torch.tensor(float(r["bought"])),
        }


class Screen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(CONTEXT, 32), nn.ELU(), nn.Linear(32, 32), nn.ELU())
        self.out = nn.Linear(32, len(FLAVOURS))

    def forward(self, x):
        return self.out(self.body(x)).softmax(-1)


def off_policy_loss(chance, batch, baseline, cap):
    mine = chance.gather(1, batch["shown"][:, None]).squeeze(1)
    ratio = mine / batch["propensity"]
    ratio = ratio.clamp(max=cap)                 # heavy tails are cut, at the price of some bias
    entropy = -(chance * chance.clamp_min(1e-6).log()).sum(1).mean()
    return -(ratio * (batch["bought"] - baseline)).mean() - 0.01 * entropy, ratio


def main():
    set_seed(31)
    accelerator = Accelerator(cpu=True)
    visits = Visits(last_summer(1600, seed=84))
    loader = DataLoader(visits, batch_size=40, shuffle=True, drop_last=True,
                        generator=torch.Generator().manual_seed(9))
    model = Screen()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    baseline = sum(float(r["bought"]) for r in visits.rows) / len(visits)
    for step, batch in enumerate(loader, start=1):
        loss, ratio = off_policy_loss(model(batch["x"]), batch, baseline, cap=12.0)
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        print(f"visit block {step:02d}: loss {loss.item():+.6f}, largest ratio {ratio.max().item():.4f}", flush=True)

    print(sum(p.detach().abs().sum() for p in model.parameters()).item(), flush=True)


if __name__ == "__main__":
    main()
