"""Attentive neural process for temperature against depth in boreholes.

Every well has its own number of readings, some have none at all (then the prior must do). A well
without context has no key to attend to; its row of attention is replaced by zeros.
"""
import math
import sys

import torch
import torch.nn as nn

torch.manual_seed(21)
GEN = torch.Generator().manual_seed(22)


def draw_wells(n, max_context):
    depth = torch.rand(n, 40, 1, generator=GEN)
    gradient = 2 + torch.rand(n, 1, 1, generator=GEN)
    bump = torch.randn(n, 1, 1, generator=GEN)
    temp = gradient * depth - 1.5 + 0.4 * bump * torch.exp(-((depth - 0.4) / 0.1) ** 2)
    temp = temp + 0.02 * torch.randn(temp.shape, generator=GEN)
    count = torch.randint(0, max_context + 1, (n,), generator=GEN)
    known = torch.arange(40)[None] < count[:, None]
    return depth, temp, known


class CrossAttention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k = nn.Linear(1, dim), nn.Linear(1, dim)

    def forward(self, x_target, x_context, r, known):
        scores = self.q(x_target) @ self.k(x_context).transpose(1, 2) / math.sqrt(self.q.out_features)
        scores = scores.masked_fill(~known[:, None], -math.inf)
        weights = scores.softmax(-1)                                   # nan in a well without context
        weights = torch.where(known.any(1)[:, None, None], weights, 0.0)
        return weights @ r


class NeuralProcess(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(2, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.latent = nn.Linear(dim, 2 * 8)
        self.attend = CrossAttention(dim)
        self.decode = nn.Sequential(nn.Linear(dim + 8 + 1, 64), nn.ReLU(), nn.Linear(64, 2))

    def summary(self, r, known):
        k = known[..., None].to(r.dtype)
        mean, raw = self.latent((r * k).sum(1) / k.sum(1).clamp(min=1)).chunk(2, -1)
        return torch.distributions.Normal(mean, 0.1 + 0.9 * torch.sigmoid(raw))

    def forward(self, x, y, known):
        r = self.encode(torch.cat([x, y], -1))
        prior = self.summary(r, known)
        posterior = self.summary(r, torch.ones_like(known))
        z = posterior.rsample()[:, None].expand(-1, x.shape[1], -1)
        a = self.attend(x, x, r, known)
        mean, raw = self.decode(torch.cat([a, z, x], -1)).chunk(2, -1)
        kl = torch.distributions.kl_divergence(posterior, prior).sum(-1)
        return torch.distributions.Normal(mean, 0.01 + nn.functional.softplus(raw)), kl


def context_error(p, y, known):
    """RMSE on the context per well: nan where a well has none, so the report has nanmedian besides the mean."""
    se = ((p.mean - y) ** 2)[..., 0] * known
    return (se.sum(1) / known.sum(1)).sqrt()


def main(steps=60):
    model = NeuralProcess()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    best = -math.inf
    for step in range(1, steps + 1):
        x, y, known = draw_wells(24, max_context=3 if step < 20 else 12)
        p, kl = model(x, y, known)
        loglik = p.log_prob(y).sum((1, 2)) / 40
        loss = (kl / 40 - loglik).mean()          # falls below zero when the densities pass one
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        err = context_error(p, y, known).detach()
        best = max(best, -loss.item())
        sys.stdout.write(f"{step:02d} loss {loss.item():+.6f} best {best:.5f} rmse {err.mean().item():.4f} "
                         f"median {err.nanmedian().item():.4f} empty {int((~known.any(1)).sum())}\n")
        sys.stdout.flush()
    print(f"{sum(w.abs().sum() for w in model.parameters()).item():.6f}")


main()
