"""Melt of a glacier from a weather mast.  Functional training: parameters are a dictionary, every weight moves by its
mean gradient in units of the scatter of that gradient over the sixteen readings of the hour."""
from functools import partial

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

LR = 0.02
HOURS = 32


def mast(seed):
    g = torch.Generator().manual_seed(seed)
    last = None
    for hour in range(1, HOURS + 1):
        air = 3.0 * torch.sin(torch.tensor(hour / 4.0)) + torch.randn(16, generator=g)
        sun = torch.rand(16, generator=g) * 2
        wind = torch.rand(16, generator=g)
        melt = torch.relu(0.3 * air + 0.6 * sun) + 0.2 * wind + 0.05 * torch.randn(16, generator=g)
        x = torch.stack([air / 3, sun - 1, wind - 0.5], dim=1)
        if hour >= 19:
            # rime on the mast: the logger repeats what it has sent last
            x, melt = last[0].expand(16, 3).clone(), last[1].expand(16).clone()
        else:
            last = (x[-1], melt[-1])
        yield hour, x, melt


def loss_of_one(model, params, x, y):
    out = functional_call(model, params, (x.unsqueeze(0),))
    return (out.squeeze() - y) ** 2


def update(params, mean, scatter, lr):
    return {k: params[k] - lr * (mean[k] / scatter[k]) for k in params}


def run():
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(3, 10), nn.Tanh(), nn.Linear(10, 1))
    params = {k: v.detach().clone() for k, v in model.named_parameters()}
    per_reading = vmap(grad_and_value(partial(loss_of_one, model)), in_dims=(None, 0, 0))

    for hour, x, melt in mast(90):
        grads, losses = per_reading(params, x, melt)
        mean = {k: g.mean(0) for k, g in grads.items()}
        scatter = {k: g.std(0) for k, g in grads.items()}
        params = update(params, mean, scatter, LR)
        print(f"hour {hour:02d}: squared error {losses.mean():.5f}")

    total = sum(v.abs().sum() for v in params.values())
    print(f"sum of absolute parameters {total:.5f}")


run()
