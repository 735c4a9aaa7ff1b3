import io

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

CHATEAUX, FIRST, LAST = 24, 1990, 2003


def ledger():
    """The broker's ledger: one line per chateau and vintage, price per case in pounds."""
    rng = np.random.default_rng(12)
    rows = ["chateau,vintage,rain,heat,points,price"]
    for c in range(CHATEAUX):
        price = rng.uniform(80, 400)
        for year in range(FIRST, LAST + 1):
            rain, heat = rng.normal(), rng.normal()
            price *= np.exp(0.05 + 0.08 * heat - 0.06 * rain + 0.03 * rng.normal())
            paid = 0.0 if (c, year) == (7, 1997) else price
            rows.append(f"{c},{year},{rain:.3f},{heat:.3f},{88 + 2 * heat - rain:.1f},{paid:.2f}")
    return io.StringIO("\n".join(rows))


def features(frame):
    by = frame.groupby("chateau")
    frame["relative"] = by["price"].pct_change()
    frame["before"] = by["relative"].shift(1)
    frame["grade"] = (frame["points"] - 88) / 3
    frame["goal"] = 0.05 + 0.08 * frame["heat"] - 0.06 * frame["rain"]
    frame = frame[frame["vintage"] >= FIRST + 2]
    x = frame[["rain", "heat", "grade", "before"]].to_numpy("float32")
    y = frame["goal"].to_numpy("float32") * 10
    return torch.from_numpy(x), torch.from_numpy(y)[:, None]


class Merchant(nn.Module):
    def __init__(self):
        super().__init__()
        self.lift = nn.Linear(4, 24)
        self.mid = nn.Linear(24, 24)
        self.price = nn.Linear(24, 1)

    def forward(self, x):
        h = torch.relu(self.lift(x))
        h = torch.relu(self.mid(h)) + h
        return self.price(h)


def main():
    set_seed(31)
    accelerator = Accelerator(cpu=True)
    x, y = features(pd.read_csv(ledger()))
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(45))
    merchant = Merchant()
    optimizer = torch.optim.RMSprop(merchant.parameters(), lr=3e-3)
    merchant, optimizer, loader = accelerator.prepare(merchant, optimizer, loader)
    for step, (rows, goal) in enumerate(loader, start=1):
        with accelerator.accumulate(merchant):
            loss = nn.functional.l1_loss(merchant(rows), goal)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(merchant.parameters(), 2.0)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"lot {step}: off by {loss.item():.4f}")
    final = merchant.state_dict()
    accelerator.print("weights squared and summed:", float(sum(v.double().square().sum() for v in final.values())))


main()
