"""Chatter amplitude on the lathe: a heteroscedastic two-layer net, gradients by hand.

I port this to the PLC's C code later, so no autograd here: each layer's derivative is written
out, put into p.grad, and a stock optimizer only does the update.
"""
import math

import torch

torch.manual_seed(20)
torch.set_grad_enabled(False)          # nothing here needs a graph

HIDDEN, BATCH, STEPS = 16, 32, 48
FEATURES = ["rpm", "feed", "depth", "overhang"]


def cuts(n):
    x = torch.rand(n, len(FEATURES)) * 2 - 1
    y = 0.3 * torch.sin(3 * x[:, 0]) + 0.2 * x[:, 2] * x[:, 3]
    return x, y + 0.02 * torch.randn(n)


def make_params():
    shapes = dict(w1=(len(FEATURES), HIDDEN), b1=(HIDDEN,), w2=(HIDDEN,), b2=(1,), logs=(1,))
    params = {k: torch.nn.Parameter(torch.randn(s) / math.sqrt(s[0])) for k, s in shapes.items()}
    params["b1"].zero_()
    params["b2"].zero_()
    params["logs"].fill_(-0.5)
    return params


def forward(p, x):
    a = x @ p["w1"] + p["b1"]
    h = torch.tanh(a)
    return h, h @ p["w2"] + p["b2"]


def nll(p, x, y):
    """Gaussian NLL without its constant: goes below zero as sigma shrinks."""
    h, mu = forward(p, x)
    inv = torch.exp(-2 * p["logs"])
    r = mu - y
    loss = (0.5 * r.square() * inv + p["logs"]).mean()
    cache = (x, h, r, inv)
    return loss, cache


def derivative(p, cache):
    x, h, r, inv = cache
    n = len(x)
    d_mu = r * inv / n
    d_h = d_mu[:, None] * p["w2"]
    d_a = d_h * (1 - h * h)
    return {
        "w2": h.T @ d_mu,
        "b2": d_mu.sum().view(1),
        "w1": x.T @ d_a,
        "b1": d_a.sum(0),
        "logs": (1 - (r * r) * inv).mean().view(1),
    }


def correlation_long_overhang(p, x, y):
    """Only for the log. With fewer than two cuts of long overhang there is no correlation."""
    far = x[:, 3] > 0.93
    u, v = forward(p, x[far])[1], y[far]
    u, v = u - u.mean(), v - v.mean()
    return float((u * v).sum() / (u.norm() * v.norm()))


def main():
    p = make_params()
    opt = torch.optim.SGD(p.values(), lr=0.02, momentum=0.85, nesterov=True)
    x, y = cuts(512)
    for step in range(STEPS):
        rows = torch.randint(0, len(x), (BATCH,))
        xb, yb = x[rows], y[rows]
        loss, cache = nll(p, xb, yb)
        for name, g in derivative(p, cache).items():
            p[name].grad = g
        torch.nn.utils.clip_grad_norm_(list(p.values()), 5.0)
        opt.step()
        corr = correlation_long_overhang(p, xb, yb)
        print(f"cut {step:02d}  nll {loss.item():+.6f}  sigma {p['logs'].exp().item():.5f}  corr@long {corr:.3f}")
    total = sum(v.double().sum().item() for v in p.values())
    print(f"sum of weights {total:.8f}")


if __name__ == "__main__":
    main()
