"""Density of silt grain-size triplets (sieve fractions) with a small normalising flow, parameters kept as a dict of tensors.

x in (0, inf)^3  --Box-Cox with learned exponents-->  y  --affine couplings-->  z ~ N(0, I)
"""
import math

import torch
import torch.nn as nn
from torch.func import functional_call, grad_and_value

torch.manual_seed(21)
DIM, STEPS, BATCH, LR, CLIP = 3, 40, 64, 0.02, 5.0


def sieve_fractions(n=2560):
    gen = torch.Generator().manual_seed(5)
    base = torch.randn(n, DIM, generator=gen) @ torch.tensor([[0.5, 0.2, 0.0], [0.0, 0.4, 0.1], [0.1, 0.0, 0.3]])
    grams = (base + torch.tensor([0.2, -0.1, 0.4])).exp()
    grams = (grams * 100).round() / 100          # the balance shows centigrams
    grams[:, 1] = grams[:, 1].clamp(min=0.02)
    grams[1180, 2] = 0.0                         # nothing passed to the pan in this sample
    return grams


class BoxCox(nn.Module):
    def __init__(self):
        super().__init__()
        self.lam = nn.Parameter(torch.full((DIM,), 0.8))

    def forward(self, x):
        y = (x ** self.lam - 1.0) / self.lam
        logdet = ((self.lam - 1.0) * x.log()).sum(-1)
        return y, logdet


class Coupling(nn.Module):
    def __init__(self, keep):
        super().__init__()
        self.register_buffer("keep", torch.tensor(keep))
        self.net = nn.Sequential(nn.Linear(DIM, 32), nn.SiLU(), nn.Linear(32, 2 * DIM))
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, y):
        s, t = self.net(y * self.keep).chunk(2, -1)
        s = torch.tanh(s) * (1 - self.keep)
        t = t * (1 - self.keep)
        return y * s.exp() + t, s.sum(-1)


class Flow(nn.Module):
    def __init__(self):
        super().__init__()
        self.boxcox = BoxCox()
        self.layers = nn.ModuleList([Coupling([1.0, 0.0, 0.0]), Coupling([0.0, 1.0, 1.0]), Coupling([0.0, 1.0, 0.0])])

    def forward(self, x):
        y, logdet = self.boxcox(x)
        for layer in self.layers:
            y, ld = layer(y)
            logdet = logdet + ld
        return -0.5 * (y ** 2).sum(-1) - 0.5 * DIM * math.log(2 * math.pi) + logdet


flow = Flow()
data = sieve_fractions()
params = {k: p.detach().clone() for k, p in flow.named_parameters()}
moment = {k: torch.zeros_like(p) for k, p in params.items()}


def nll(params, x):
    return -functional_call(flow, params, (x,)).mean()


value_of = grad_and_value(nll)

for step in range(1, STEPS + 1):
    at = (step - 1) * BATCH % len(data)
    grads, loss = value_of(params, data[at:at + BATCH])
    norm = torch.stack([g.norm() for g in grads.values()]).norm()
    factor = torch.clamp(CLIP / (norm + 1e-6), max=1.0)
    for k in params:
        moment[k] = 0.8 * moment[k] + grads[k] * factor
        params[k] = params[k] - LR * moment[k]
    print(f"{step:3d} nll {loss.item():.6f} norm {norm.item():.5f}", flush=True)

print(sum(p.abs().sum().item() for p in params.values()), flush=True)
