"""Shared initialisation for pigeon counts in many dovecotes, in the functional style.

Parameters live in a dict, the model is called with torch.func.functional_call, inner and outer
gradients come from torch.func.grad.  Inputs are centred by a running mean of the
observed (not missing) weather columns, which travels with the loop as plain state.
"""
from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call, grad

torch.manual_seed(62)
torch.set_num_threads(1)
COLUMNS = ["temperature", "wind", "grain", "daylight", "hawk_sightings"]


class Task(NamedTuple):
    x: torch.Tensor
    seen: torch.Tensor
    y: torch.Tensor


class Centre(NamedTuple):
    mean: torch.Tensor
    rate: float = 0.2


def tasks(count):
    g = torch.Generator().manual_seed(63)
    level = torch.tensor([11.0, 4.0, 2.0, 12.0, 0.5])
    for k in range(count):
        x = level + torch.randn(24, len(COLUMNS), generator=g)
        seen = (torch.rand(24, len(COLUMNS), generator=g) > 0.25).float()
        if k == 12:                     # this keeper had no anemometer at all
            seen[:, 1] = 0
        slope = torch.randn(len(COLUMNS), generator=g) * 0.3
        y = ((x - level) @ slope + 0.1 * torch.randn(24, generator=g)).unsqueeze(1)
        yield Task(x, seen, y)


def recentre(centre, task):
    got = (task.x * task.seen).sum(0)
    column_mean = got / task.seen.sum(0)
    return centre._replace(mean=(1 - centre.rate) * centre.mean + centre.rate * column_mean)


def prepare(centre, task):
    filled = torch.where(task.seen.bool(), task.x, centre.mean)          # what is missing is as usual
    return filled - centre.mean


net = nn.Sequential(nn.Linear(len(COLUMNS), 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = torch.optim.Adam(net.parameters(), lr=6e-3)


def fit_loss(params, x, y):
    return (functional_call(net, params, (x,)) - y).square().mean()


def outer_loss(params, x, y, inner_lr=0.05):
    support, query = slice(0, 12), slice(12, 24)
    inner = grad(fit_loss)(params, x[support], y[support])
    moved = {n: p - inner_lr * inner[n] for n, p in params.items()}
    value = fit_loss(moved, x[query], y[query])
    return value, value.detach()


meta = grad(outer_loss, has_aux=True)
centre = Centre(torch.tensor([10.0, 3.0, 1.5, 11.0, 0.0]))
for n, task in enumerate(tasks(30), 1):
    centre = recentre(centre, task)
    x = prepare(centre, task)
    params = {k: p.detach() for k, p in net.named_parameters()}
    grads, loss = meta(params, x, task.y)
    for name, p in net.named_parameters():
        p.grad = grads[name]
    optimizer.step()
    print(f"dovecote {n:2d}  query mse {loss.item():.6f}")

print("weights", sum(p.detach().double().sum().item() for p in net.parameters()))
