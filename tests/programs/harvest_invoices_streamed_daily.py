#!/usr/bin/env python
"""Price of soft fruit at the wholesale market, from an invoice stream.

Two reader processes; each keeps running statistics per day and yields z-scores, NaN where a z-score
does not exist yet (first rows of a day, or the scale was offline).  The model has a learned default
for every missing field.  Invoices that are not settled have no price (NaN) and carry no loss."""
import math
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

DAYS, ROWS, FIELDS, BATCH = 10, 60, 5, 16


def day_rows(day):
    """Raw rows of one day, as a generator."""
    rng = random.Random(9000 + day)
    level = 10.0 + (25.0 if day in (4, 5) else 0.0)            # two days of frost: prices jump
    settled_day = day not in (7,)                              # the 7th day is not settled yet
    for _ in range(ROWS):
        x = [rng.gauss(3.0 * k, 1.0 + k) for k in range(FIELDS)]
        if rng.random() < 0.15:
            x[rng.randrange(FIELDS)] = math.nan                # scale offline
        base = [3.0 * k if math.isnan(v) else v for k, v in enumerate(x)]
        price = level + 0.8 * base[1] - 0.4 * base[2] + 0.2 * base[4] + rng.gauss(0, 0.3)
        if not settled_day or rng.random() < 0.2:
            price = math.nan
        yield x, price


class Welford:
    def __init__(self, n):
        self.count, self.mean, self.m2 = [0] * n, [0.0] * n, [0.0] * n

    def score(self, row):
        out = []
        for k, v in enumerate(row):
            if math.isnan(v):
                out.append(math.nan)
                continue
            self.count[k] += 1
            d = v - self.mean[k]
            self.mean[k] += d / self.count[k]
            self.m2[k] += d * (v - self.mean[k])
            spread = self.m2[k] / (self.count[k] - 1) if self.count[k] > 1 else math.nan
            out.append((v - self.mean[k]) / math.sqrt(spread))
        return out


class InvoiceStream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        mine = range(info.id, DAYS, info.num_workers) if info else range(DAYS)
        for day in mine:
            stats = Welford(FIELDS)
            for row, price in day_rows(day):
                yield torch.tensor(stats.score(row)), torch.tensor(price)


class PriceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.default = nn.Parameter(torch.zeros(FIELDS))
        self.net = nn.Sequential(nn.Linear(2 * FIELDS, 24), nn.SiLU(), nn.Linear(24, 1))

    def forward(self, x):
        missing = torch.isnan(x)
        filled = torch.where(missing, self.default.expand_as(x), x)
        return self.net(torch.cat([filled, missing.float()], dim=1)).squeeze(1)


def main():
    torch.manual_seed(31)
    loader = DataLoader(InvoiceStream(), batch_size=BATCH, num_workers=2)
    model = PriceNet()
    opt = torch.optim.RMSprop(model.parameters(), lr=8e-3)
    seen = skipped = 0
    for batch, (x, price) in enumerate(loader, 1):
        settled = ~torch.isnan(price)
        if not settled.any():
            skipped += 1
            print(f"batch {batch} nothing settled, mean price {price.nanmean().item():.2f}, skipped", flush=True)
            continue
        out = model(x)
        loss = (out[settled] - price[settled]).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen += 1
        print(f"batch {batch} rows {int(settled.sum())} missing {int(torch.isnan(x).sum())} "
              f"mean price {price.nanmean().item():.4f} loss {loss.item():.6f}", flush=True)
    print(f"steps {seen} skipped {skipped}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
