"""Meta-learned start for the calibration of thermistors: a new batch of parts is fitted from five readings.

MAML with two inner steps, all tasks at once by torch.func.vmap; parameters are a plain dict.
"""

import math

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

SHOTS, QUERY, TASKS = 5, 12, 6
INNER, INNER_LR = 2, 0.08


class Curve(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(1, 32)
        self.b = nn.Linear(32, 32)
        self.c = nn.Linear(32, 1)

    def forward(self, x):
        return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))


class OilBath:
    """A bath walks slowly through a band of temperature; the bridge reads in steps of half a degree."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def uniform(self, lo, hi, *shape):
        return lo + (hi - lo) * torch.rand(*shape, generator=self.g)

    def one_task(self):
        beta, offset = self.uniform(0.6, 1.4, 1), self.uniform(-0.4, 0.4, 1)
        centre, band = self.uniform(-1.0, 1.0, 1), self.uniform(0.01, 0.6, 1)
        x = centre + band * self.uniform(-1.0, 1.0, SHOTS + QUERY, 1)
        kelvin = 12.0 * torch.sinh(beta * x + offset) + 0.2 * torch.randn(x.shape, generator=self.g)
        reading = torch.round(kelvin * 2) / 2
        return x, reading

    def many(self, n):
        x, y = zip(*[self.one_task() for _ in range(n)], strict=False)
        return torch.stack(x), torch.stack(y)


def unit_range(y):
    """Every task is brought to 0..1 by the readings that are known at the time, which are the shots."""
    low = y[:, :SHOTS].amin(1, keepdim=True)
    high = y[:, :SHOTS].amax(1, keepdim=True)
    return (y - low) / (high - low)


model = None


def task_loss(params, x, y):
    return nn.functional.smooth_l1_loss(functional_call(model, params, (x,)), y)


def adapt(params, x, y):
    for _ in range(INNER):
        g, _ = grad_and_value(task_loss)(params, x, y)
        params = {k: p - INNER_LR * g[k] for k, p in params.items()}
    return params


def query_loss(params, x, y):
    fast = adapt(params, x[:SHOTS], y[:SHOTS])
    return task_loss(fast, x[SHOTS:], y[SHOTS:])


def train(steps=45, seed=2):
    global model
    torch.manual_seed(seed)
    model = Curve()
    params = dict(model.named_parameters())
    opt = torch.optim.Adam(params.values(), lr=3e-3)
    bath = OilBath(seed=seed)
    for step in range(1, steps + 1):
        for group in opt.param_groups:
            group["lr"] = 3e-3 * 0.5 * (1 + math.cos(math.pi * (step - 1) / steps))
        x, y = bath.many(TASKS)
        y = unit_range(y)
        losses = vmap(query_loss, in_dims=(None, 0, 0))(params, x, y)
        loss = losses.mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"meta {step} {loss.item():.6f} median {losses.median().item():.6f}", flush=True)
    return params


final = train()
print(f"{sum(p.detach().abs().sum().item() for p in final.values()):.6f}", flush=True)
