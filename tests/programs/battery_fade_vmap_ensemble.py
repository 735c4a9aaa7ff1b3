"""Ensemble of capacity-fade models for Li-ion cells, evaluated with torch.func.vmap over stacked parameters.

Check-ups that were not carried out are NaN in the table and stay NaN in the target tensor; they are masked.
Member 0 is the vendor's model and is kept frozen.
"""
import copy

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

MEMBERS, CELLS, CHECKS, STEPS = 6, 40, 12, 48


class Fade(nn.Module):
    """capacity(n) = 1 - a(z) * n**b(z), with z = temperature, C-rate, depth of discharge"""

    def __init__(self, hidden=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.amplitude = nn.Linear(hidden, 1)
        self.exponent = nn.Linear(hidden, 1)
        self.spread = nn.Linear(hidden, 1)

    def forward(self, z, n):
        h = self.body(z)
        a = nn.functional.softplus(self.amplitude(h) - 2)
        b = nn.functional.softplus(self.exponent(h))
        return 1 - a * n ** b, self.spread(h) - 3       # n = 0 at the first check-up: 0**b


def table(seed):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(CELLS, 3, generator=g)
    n = torch.linspace(0, 1.1, CHECKS).expand(CELLS, -1).clone()
    a = 0.12 * torch.exp(0.3 * z[:, :1])
    b = 0.6 + 0.1 * torch.tanh(z[:, 1:2])
    q = 1 - a * n ** b + 0.004 * torch.randn(CELLS, CHECKS, generator=g)
    q[torch.rand(CELLS, CHECKS, generator=g) < 0.25] = float("nan")
    q[7] = float("nan")                                 # cell 7 never came back from the lab
    return z, n, q


def nll(params, buffers, z, n, q, w):
    mean, log_s = functional_call(base, (params, buffers), (z, n))
    seen = ~torch.isnan(q)
    r = torch.where(seen, q, torch.zeros_like(q)) - mean
    log_s = log_s.expand_as(r)
    per = log_s + 0.5 * (r * torch.exp(-log_s)) ** 2
    return (per * seen * w[:, None]).sum() / (seen * w[:, None]).sum()


def bootstrap_weights(g):
    idx = torch.randint(CELLS, (MEMBERS, CELLS), generator=g)
    return torch.zeros(MEMBERS, CELLS).scatter_add_(1, idx, torch.ones(MEMBERS, CELLS))


torch.manual_seed(5)
models = [Fade() for _ in range(MEMBERS)]
params, buffers = stack_module_state(models)
base = copy.deepcopy(models[0]).to("meta")
g = torch.Generator().manual_seed(6)
z, n, q = table(9)
trainable = torch.ones(MEMBERS)
trainable[0] = 0.0
optimizer = torch.optim.Adam(params.values(), lr=8e-3)
batched = vmap(nll, in_dims=(0, 0, None, None, None, 0))

for step in range(1, STEPS + 1):
    w = bootstrap_weights(g)
    losses = batched(params, buffers, z, n, q, w)
    loss = (losses * trainable).sum()                   # negative after a while: log of small spreads
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        mean, _ = vmap(lambda p, b: functional_call(base, (p, b), (z, n)))(params, buffers)
        rmse_cell = (mean.mean(0) - q).pow(2).nanmean(1).sqrt()
    print(f"step {step:02d} loss {loss.item():+.6f} members {' '.join(f'{x:+.3f}' for x in losses.tolist())} "
          f"worst cell {rmse_cell.max().item():.4f} cell7 {rmse_cell[7].item():.4f}", flush=True)

print(f"sum {sum(p.detach().abs().sum().item() for p in params.values()):.6f}", flush=True)
