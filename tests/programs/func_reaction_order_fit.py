"""Fit rate constants and the order of a decomposition to batch-reactor data with torch.func."""
import torch
from torch.func import grad_and_value, vmap

torch.manual_seed(0)
dt, steps = 0.1, 30
start = torch.tensor([1.0, 0.8, 1.5, 1.2])
heat = torch.tensor([0.0, 0.3, 0.6, 0.9])


def simulate(p, c0, h):
    rate = torch.exp(p["log_k"] + p["activation"] * h)
    c, path = c0, []
    for _ in range(steps):
        c = c - dt * rate * c ** p["order"]
        path.append(c)
    return torch.stack(path)


def loss_fn(p, measured):
    path = vmap(simulate, in_dims=(None, 0, 0))(p, start, heat)
    return (path - measured).square().mean()


def measured_curves():
    k = torch.exp(torch.tensor(1.6) + 1.1 * heat)[:, None]
    t = dt * torch.arange(1, steps + 1)
    clean = start[:, None] / (1 + k * start[:, None] * t)      # second order
    return clean + 0.005 * torch.randn(clean.shape)


data = measured_curves()
params = {"log_k": torch.tensor(-0.5), "activation": torch.tensor(0.2), "order": torch.tensor(1.4)}
velocity = {k: torch.zeros_like(v) for k, v in params.items()}
fit = grad_and_value(loss_fn)
for epoch in range(1, 201):
    grads, loss = fit(params, data)
    for k in params:
        velocity[k] = 0.9 * velocity[k] + grads[k]
        params[k] = params[k] - 0.2 * velocity[k]
    print(f"epoch {epoch} sse {loss.item():.6f} k {params['log_k'].exp().item():.3f} n {params['order'].item():.3f}")
print("parameters", sum(v.square().item() for v in params.values()))
