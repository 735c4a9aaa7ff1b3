"""Humidity of greenhouse zones. Loss terms are registered with a decorator and summed from a dict;
a context manager holds the step.
"""
import contextlib
from types import SimpleNamespace

import torch
from torch import nn

TERMS = {}
ZONES = 3


def term(weight):
    def register(fn):
        TERMS[fn.__name__] = (weight, fn)
        return fn
    return register


@term(1.0)
def fit(b):
    return (b.pred - b.target).square().mean()


@term(0.05)
def smooth(b):
    return b.model.mix.weight.diff(dim=1).square().sum()


@term(0.3)
def zone_spread(b):
    """The spread of the forecast inside a zone has to match that of the sensors."""
    total = b.pred.new_zeros(())
    for z in range(ZONES):
        rows = b.zone == z
        n = rows.sum()
        p, t = b.pred[rows], b.target[rows]
        pv = (p - p.mean()).square().sum() / (n - 1)
        tv = (t - t.mean()).square().sum().div(n).detach()
        total = total + (pv - tv).abs()
    return total


@term(1e-3)
def bounds(b):
    return torch.relu(b.pred - 1).sum() + torch.relu(-b.pred).sum()


class Zones(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(6, 10)
        self.read = nn.Linear(10, 1)

    def forward(self, x):
        return self.read(torch.relu(self.mix(x))).squeeze(1)


class Stepper:
    def __init__(self, model, lr):
        self.model = model
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
        self.done = 0

    @contextlib.contextmanager
    def step(self):
        box = SimpleNamespace(model=self.model)
        self.opt.zero_grad()
        yield box
        box.parts = {k: w * fn(box) for k, (w, fn) in TERMS.items()}
        box.loss = sum(box.parts.values())
        box.loss.backward()
        self.opt.step()
        self.done += 1
        shown = " ".join(f"{k}={v.item():.5f}" for k, v in box.parts.items())
        print(f"hour {self.done:3d} loss={box.loss.item():.6f} {shown}")


def hours(count, gen):
    """Readings of an hour. Zone 2 has few sensors, and its gateway loses some of them."""
    for hour in range(1, count + 1):
        sizes = [12, 9, int(torch.randint(3, 6, (1,), generator=gen))]
        if hour == 21:
            sizes[2] = 1        # condensation in the junction box: one sensor answers
        zone = torch.repeat_interleave(torch.arange(ZONES), torch.tensor(sizes))
        x = torch.rand(len(zone), 6, generator=gen)
        y = 0.5 + 0.2 * torch.sin(4 * x[:, 0]) * x[:, 1] + 0.05 * zone
        yield x, y, zone


def main():
    torch.manual_seed(60)
    stepper = Stepper(Zones(), lr=8e-3)
    for x, y, zone in hours(34, torch.Generator().manual_seed(61)):
        with stepper.step() as b:
            b.pred = stepper.model(x)
            b.target, b.zone = y, zone
    print("zones done, weights", sum(p.double().sum().item() for p in stepper.model.parameters()))


main()
