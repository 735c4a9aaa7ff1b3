"""Stiffness of the segments of a mooring chain from tension logs, in newtons, with L-BFGS.

Tensions are in N (not kN), the loss is a plain sum of squares: values of 1e9 and above are normal.
A rough sea doubles the loads of two of the days.
"""
import functools

import torch

SEGMENTS, ROWS, DAYS = 5, 60, 24


class Chain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log_k = torch.nn.Parameter(torch.full((SEGMENTS,), 8.0))
        self.preload = torch.nn.Parameter(torch.tensor(1.0))
        # drag is from the basin test, we keep it as it is
        self.drag = torch.nn.Parameter(torch.tensor(120.0), requires_grad=False)

    def forward(self, stretch, current):
        k = torch.exp(self.log_k)
        return stretch @ k + 1e3 * self.preload + self.drag * current * current.abs()


def day_log(day, gen):
    rough = 2.5 if day in (9, 17) else 1.0
    stretch = rough * torch.rand(ROWS, SEGMENTS, generator=gen)
    current = torch.randn(ROWS, generator=gen)
    k = torch.tensor([4200.0, 5100.0, 3900.0, 6000.0, 4700.0])
    tension = stretch @ k + 2500.0 + 120.0 * current * current.abs()
    return stretch, current, tension + 40.0 * torch.randn(ROWS, generator=gen)


def closure_for(model, opt, log, tally):
    stretch, current, tension = log

    def closure():
        opt.zero_grad()
        loss = (model(stretch, current) - tension).pow(2).sum()
        loss.backward()
        tally.append(loss.item())
        return loss

    return closure


def announce(fn):
    @functools.wraps(fn)
    def wrapped(day, *args):
        first, calls = fn(day, *args)
        print(f"day {day:2d}  sum of squares {first:.6e}  closure calls {calls}")
        return first
    return wrapped


@announce
def fit_day(day, model, opt, log):
    tally = []
    first = opt.step(closure_for(model, opt, log, tally))
    return first.item(), len(tally)


def main():
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(3)
    model = Chain().double()
    free = [p for p in model.parameters() if p.requires_grad]
    history = []
    opt = None
    for day in range(DAYS):
        if day % 8 == 0:      # the curvature pairs of last week belong to another tide
            opt = torch.optim.LBFGS(free, lr=0.8, max_iter=4, history_size=6, line_search_fn="strong_wolfe")
        log = tuple(t.double() for t in day_log(day, gen))
        history.append(fit_day(day, model, opt, log))
    worst = max(history)
    print(f"worst day {history.index(worst)} at {worst:.4e}")
    print("stiffness", " ".join(f"{v:.2f}" for v in model.log_k.exp().tolist()))
    print(f"sum {sum(p.sum().item() for p in model.parameters()):.8f}")


if __name__ == "__main__":
    main()
