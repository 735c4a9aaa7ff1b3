"""Gait phase from a chest strap (6 channels, 32 samples).  Pure functions, params are nested dicts.

Every layer is an (init, apply) pair; nothing here is an nn.Module.  The optimiser is Adam over trees.
"""
import math
from typing import Callable, NamedTuple

import torch
import torch.nn.functional as F

STEPS = 36
CH, T, CLASSES = 6, 32, 4


class Pair(NamedTuple):
    init: Callable
    apply: Callable


def tree_map(f, tree, *rest):
    if isinstance(tree, dict):
        return {k: tree_map(f, v, *(r[k] for r in rest)) for k, v in tree.items()}
    return f(tree, *rest)


def tree_leaves(tree):
    if isinstance(tree, dict):
        for k in sorted(tree):
            yield from tree_leaves(tree[k])
    else:
        yield tree


def channel_gain(ch):
    # calibrates the six channels against each other before the window is standardised
    def init(gen):
        return {"g": torch.ones(ch, 1) + 0.05 * torch.randn(ch, 1, generator=gen)}

    def apply(p, x):
        return x * p["g"]
    return Pair(init, apply)


def standardise():
    def init(gen):
        return {}

    def apply(p, x):
        centred = x - x.mean((1, 2), keepdim=True)
        power = centred.square().mean((1, 2), keepdim=True)
        sd = power.sqrt()
        return centred / (sd + 1e-5)
    return Pair(init, apply)


def linear(n_in, n_out):
    def init(gen):
        return {"w": torch.randn(n_in, n_out, generator=gen) / math.sqrt(n_in), "b": torch.zeros(n_out)}

    def apply(p, x):
        return x @ p["w"] + p["b"]
    return Pair(init, apply)


def stateless(fn):
    return Pair(lambda gen: {}, lambda p, x: fn(x))


def serial(*pairs):
    def init(gen):
        return {f"l{i}": p.init(gen) for i, p in enumerate(pairs)}

    def apply(params, x):
        for i, p in enumerate(pairs):
            x = p.apply(params[f"l{i}"], x)
        return x
    return Pair(init, apply)


def adam_init(params):
    zeros = lambda: tree_map(torch.zeros_like, params)
    return {"m": zeros(), "v": zeros(), "t": 0}


@torch.no_grad()
def adam_update(params, state, lr=4e-3, b1=0.9, b2=0.99, eps=1e-8):
    state["t"] += 1
    c1, c2 = 1 - b1 ** state["t"], 1 - b2 ** state["t"]

    def leaf(p, m, v):
        m.mul_(b1).add_(p.grad, alpha=1 - b1)
        v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
        p.sub_(lr * (m / c1) / ((v / c2).sqrt() + eps))
        p.grad = None
        return p
    tree_map(leaf, params, state["m"], state["v"])


def windows(gen, step, n=24):
    y = torch.randint(0, CLASSES, (n,), generator=gen)
    grid = torch.linspace(0, 2 * math.pi, T)
    phase = y[:, None, None] * (math.pi / 2) + torch.arange(CH)[None, :, None] * 0.4
    x = torch.sin(grid + phase) + 0.3 * torch.randn(n, CH, T, generator=gen)
    if step >= 17:
        # participant 7 joins here: battery out, the logger writes zeros for the whole session
        x[5] = 0.0
    return x, y


net = serial(channel_gain(CH), standardise(), stateless(lambda x: x.flatten(1)),
             linear(CH * T, 32), stateless(torch.tanh), linear(32, CLASSES))

gen = torch.Generator().manual_seed(77)
params = tree_map(lambda p: p.requires_grad_(), net.init(gen))
opt = adam_init(params)
for step in range(1, STEPS + 1):
    x, y = windows(gen, step)
    logits = net.apply(params, x)
    loss = F.cross_entropy(logits, y)
    loss.backward()
    adam_update(params, opt)
    print(f"step {step:02d} xent {loss.item():.6f}")
print("checksum", round(sum(float(p.detach().double().sum()) for p in tree_leaves(params)), 5))
