"""Leak detection from household water meters under differential privacy: torch.func per-sample gradients, clipping, noise.

A household whose record is unusable (broken meter: nan; a log of zero flow: -inf) contributes nothing: its gradient is dropped
before the sum. That is one record less and costs no privacy. A lot may be empty (Poisson sampling): the step is then noise only.
"""
import math

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

SEED, HOUSEHOLDS, RATE, CLIP, SIGMA, STEPS = 23, 90, 0.06, 1.0, 0.7, 44


def households():
    g = torch.Generator().manual_seed(SEED)
    flow = torch.rand(HOUSEHOLDS, 12, generator=g) + 0.05
    leak = (torch.rand(HOUSEHOLDS, generator=g) < 0.4).float()
    flow += leak[:, None] * torch.linspace(0.0, 0.8, 12)
    flow[::13, 5] = 0.0                            # away: no flow in June
    flow[7::17, 2] = float("nan")                  # the meter was being replaced
    return torch.log(flow), leak


class LeakNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 8, 3)
        self.norm = nn.GroupNorm(2, 8)
        self.fc = nn.Linear(8, 1)

    def forward(self, x):
        h = torch.relu(self.norm(self.conv(x.unsqueeze(1))))
        return self.fc(h.mean(-1)).squeeze(-1)


def private_gradient(model, params, x, y, gen):
    def one(p, xi, yi):
        logit = functional_call(model, p, (xi.unsqueeze(0),)).squeeze(0)
        return nn.functional.binary_cross_entropy_with_logits(logit, yi)

    total = {k: torch.zeros_like(v) for k, v in params.items()}
    shown, used = math.nan, 0
    if len(x):
        grads, losses = vmap(grad_and_value(one), in_dims=(None, 0, 0))(params, x, y)
        norms = torch.sqrt(sum(g.flatten(1).pow(2).sum(1) for g in grads.values()))
        usable = torch.isfinite(norms)
        used = int(usable.sum())
        scale = (CLIP / norms[usable].clamp_min(1e-12)).clamp_max(1.0)
        for k, g in grads.items():
            total[k] = torch.einsum("n,n...->...", scale, g[usable])
        shown = losses.mean().item()               # with the unusable ones: for the log only
    expected = RATE * HOUSEHOLDS
    noisy = {k: (t + SIGMA * CLIP * torch.randn(t.shape, generator=gen)) / expected for k, t in total.items()}
    return noisy, shown, used


def evaluate(model, x, y):
    ok = torch.isfinite(x).all(1)
    with torch.no_grad():
        return ((model(x[ok]) > 0).float() == y[ok]).float().mean().item()


def main():
    torch.manual_seed(SEED)
    x, y = households()
    model = LeakNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.5)
    sampler, noise = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    for step in range(1, STEPS + 1):
        lot = torch.rand(HOUSEHOLDS, generator=sampler) < (RATE if step % 9 else 0.004)
        params = {k: p.detach() for k, p in model.named_parameters()}
        grads, shown, used = private_gradient(model, params, x[lot], y[lot], noise)
        for name, p in model.named_parameters():
            p.grad = grads[name]
        optimizer.step()
        optimizer.zero_grad()
        print(f"{step:2d} lot {int(lot.sum())} used {used} loss {shown:.6f} accuracy {evaluate(model, x, y):.4f}", flush=True)
    print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
