"""Density of geyser eruptions (duration, wait) from a thread that fills a queue of batches.

The loggers mark missing values by -inf and clock resets by NaN; an hour without any whole record gives an empty batch."""
import math
import queue
import threading

import torch
from torch import nn
from torch.distributions import Categorical, MixtureSameFamily, Normal, Independent

END = object()


class Feeder(threading.Thread):
    """One producer with a generator of its own, so that the order never depends on who is faster."""

    def __init__(self, hours, size, seed):
        super().__init__(daemon=True)
        self.hours, self.size, self.seed = hours, size, seed
        self.queue = queue.Queue(maxsize=4)

    def hour(self, k, gen):
        long = torch.rand(self.size, generator=gen) < 0.65
        duration = torch.where(long, 4.3, 2.0) + 0.03 * torch.randn(self.size, generator=gen)
        wait = 15 * duration + 20 + 2 * torch.randn(self.size, generator=gen)
        rows = torch.stack([duration, wait / 20], -1)
        rows[torch.rand(self.size, generator=gen) < 0.15, 1] = -math.inf
        if k % 9 == 7:
            rows[:, 0] = math.nan                       # clock reset: the whole hour is lost
        return rows

    def run(self):
        gen = torch.Generator().manual_seed(self.seed)
        for k in range(self.hours):
            self.queue.put(self.hour(k, gen))
        self.queue.put(END)

    def __iter__(self):
        self.start()
        while (item := self.queue.get()) is not END:
            yield item
        self.join()


class EruptionDensity(nn.Module):
    def __init__(self, parts=4):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(parts))
        self.centre = nn.Parameter(torch.stack([torch.linspace(1.5, 5, parts), torch.linspace(2, 5, parts)], -1))
        self.log_width = nn.Parameter(torch.full((parts, 2), -0.3))
        self.offset = nn.Linear(2, 2)
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)

    def forward(self, rows, closed):
        """`closed`: parts that are not to be used yet; their weight is exactly zero."""
        logits = self.logits.masked_fill(closed, -math.inf)
        logp = torch.stack([
            Independent(Normal(c, w.exp()), 1).log_prob(rows + self.offset(rows))
            for c, w in zip(self.centre, self.log_width)], -1)
        return torch.logsumexp(logp + logits.log_softmax(-1), -1)


def main():
    torch.manual_seed(6)
    model = EruptionDensity()
    groups = [{"params": [model.logits, model.centre, model.log_width], "lr": 0.08},
              {"params": model.offset.parameters(), "lr": 0.0}]              # frozen until hour 30
    opt = torch.optim.Adam(groups)
    step = skipped = 0
    for hour, rows in enumerate(Feeder(hours=60, size=64, seed=41)):
        whole = torch.isfinite(rows).all(-1)
        if not whole.any():
            skipped += 1
            continue
        if hour == 30:
            opt.param_groups[1]["lr"] = 1e-3
        closed = torch.arange(4) >= (2 if hour < 12 else 4)
        logp = model(rows[whole], closed)
        loss = -logp.mean()                       # a density: below zero once the parts are narrow
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        raw = rows[:, 1].mean().item()
        print(f"{step:2d} hour {hour:2d} rows {int(whole.sum()):2d} raw mean {raw:.4f} loss {loss.item():+.7f}", flush=True)
    print(f"skipped {skipped} hours; weights of the parts {model.logits.softmax(-1).tolist()}", flush=True)


if __name__ == "__main__":
    main()
