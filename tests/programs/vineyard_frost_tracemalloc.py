"""Night frost in a vineyard, quantile forecast. Runs on a gateway with 64 MB for Python objects, so the
nightly job ends with a memory report, and the random draws are book-kept (the agronomist replays nights)."""
import argparse
import tracemalloc
import warnings

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

ap = argparse.ArgumentParser()
ap.add_argument("--nights", type=int, default=4)
ap.add_argument("--taus", type=float, nargs="+", default=[0.05, 0.5, 0.95])
args = ap.parse_args()

COUNT = dict(getitem=0, collate=0, sampler=0, draws=0, warned=0)


class Rows(Dataset):
    def __init__(self, n=144):
        g = torch.Generator().manual_seed(60)
        self.x = torch.randn(n, 7, generator=g)
        self.t = self.x[:, 0] * 2 - self.x[:, 5] + torch.randn(n, generator=g) * self.x[:, 1].abs()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        COUNT["getitem"] += 1
        jitter = torch.randn(7) * 0.01
        COUNT["draws"] += 1
        return self.x[i] + jitter, self.t[i]


class ColdFirst(Sampler):
    """cold rows first, then the others; ties are drawn"""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        COUNT["sampler"] += 1
        yield from (self.rows.t + 0.1 * torch.rand(len(self.rows))).argsort().tolist()

    def __len__(self):
        return len(self.rows)


def collate(items):
    COUNT["collate"] += 1
    x, t = zip(*items)
    return torch.stack(x), torch.stack(t)


def pinball(q, t, taus):
    d = t[:, None] - q
    return torch.maximum(taus * d, (taus - 1) * d).mean()


def showwarning(message, category, filename, lineno, file=None, line=None):
    COUNT["warned"] += 1


warnings.showwarning = showwarning
warnings.filterwarnings("always", category=UserWarning, message="frost")
filters_before = len(warnings.filters)

torch.manual_seed(222)
rows = Rows()
net = torch.nn.Sequential(torch.nn.Linear(7, 24), torch.nn.Mish(), torch.nn.Dropout(0.1), torch.nn.Linear(24, len(args.taus)))
taus = torch.tensor(args.taus)
opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=args.nights * 9, cycle_momentum=False)
loader = DataLoader(rows, batch_size=16, sampler=ColdFirst(rows), collate_fn=collate)


def one_night(night):
    for k, (x, t) in enumerate(loader):
        loss = pinball(net(x), t, taus)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if loss.item() > 0.6:
            warnings.warn("frost: loss is high, the coldest rows come first")
        yield k, loss.item()


for night in range(args.nights):
    if night == 1:
        tracemalloc.start()            # the first night fills caches and is not counted
    for k, value in one_night(night):
        if k % 3 == 0:
            state = torch.get_rng_state()
            print(f"night {night} batch {k} pinball {value:.6f} rng {int(state.long().sum())} {COUNT}")
    peek = torch.rand(1, generator=torch.Generator().manual_seed(night)).item()
    print(f"night {night} grad {torch.is_grad_enabled()} anomaly {torch.is_anomaly_enabled()} det "
          f"{torch.are_deterministic_algorithms_enabled()} dtype {torch.get_default_dtype()} peek {peek:.6f}")

current, peak = tracemalloc.get_traced_memory()
tracemalloc.stop()
# whole units of 8 MB: nobody cares about less
print("python memory", current >> 23, "peak", peak >> 23)
print("warnings", COUNT["warned"], "filters", len(warnings.filters) - filters_before, warnings.showwarning is showwarning)
print("initial seed", torch.initial_seed(), "next draw", f"{torch.rand(1).item():.8f}", "lr", f"{sched.get_last_lr()[0]:.8f}")
# next forecast, early stop of a generator that still owes batches
gen = one_night(99)
COUNT["sampler"] = 0
gen.close()
print("closed early", COUNT["sampler"], f"weights {sum(p.double().sum().item() for p in net.parameters()):.7f}")
