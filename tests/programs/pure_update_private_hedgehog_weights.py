# Predict the autumn weight of hedgehogs from garden-camera measurements, with per-animal clipped gradients (DP-SGD).
# Functional style: loss(params, x, y, m) -> scalar, grads by vmap(grad), transformations chained as in optax;
# torch.optim only applies what comes out at the end.
from typing import Callable, NamedTuple

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

torch.set_num_threads(1)
torch.manual_seed(23)


class Transform(NamedTuple):
    init: Callable
    apply: Callable     # (grads, state) -> (grads, state)


def chain(*ts):
    def init(params):
        return tuple(t.init(params) for t in ts)

    def apply(grads, states):
        out = []
        for t, s in zip(ts, states):
            grads, s = t.apply(grads, s)
            out.append(s)
        return grads, tuple(out)
    return Transform(init, apply)


def clip_each(c):
    def apply(grads, state):
        sq = sum(g.flatten(1).pow(2).sum(1) for g in grads.values())
        # animals that were not weighed that week have a gradient of exactly zero; c / 0 is inf, and the clamp makes it 1
        factor = (c / torch.sqrt(sq)).clamp(max=1.0)
        clipped = {k: g * factor.view(-1, *[1] * (g.dim() - 1)) for k, g in grads.items()}
        return clipped, {"n": sq.numel(), "share": (factor < 1).float().mean().item(), "zero": int((sq == 0).sum())}
    return Transform(lambda p: {"share": 0.0, "zero": 0}, apply)


def sum_and_noise(sigma, c, seed):
    def init(params):
        return torch.Generator().manual_seed(seed)

    def apply(grads, g):
        n = next(iter(grads.values())).shape[0]
        return {k: (v.sum(0) + sigma * c * torch.randn(v.shape[1:], generator=g)) / n for k, v in grads.items()}, g
    return Transform(init, apply)


def polyak(beta):
    def init(params):
        return {k: torch.zeros_like(v) for k, v in params.items()}

    def apply(grads, m):
        m = {k: beta * m[k] + g for k, g in grads.items()}
        return m, m
    return Transform(init, apply)


net = nn.Sequential(nn.Linear(5, 24), nn.SiLU(), nn.Linear(24, 1))
params = {k: p.detach() for k, p in net.named_parameters()}


def loss_one(params, x, y, weighed):
    pred = functional_call(net, params, (x,)).squeeze(-1)
    return weighed * nn.functional.huber_loss(pred, y, delta=0.5)


per_animal = vmap(grad_and_value(loss_one), in_dims=(None, 0, 0, 0))
rule = chain(clip_each(0.6), sum_and_noise(0.15, 0.6, 99), polyak(0.8))
state = rule.init(params)
sgd = torch.optim.SGD(net.parameters(), lr=0.08)

data = torch.Generator().manual_seed(4)
X = torch.randn(600, 5, generator=data)
Y = 0.8 * X[:, 0] - 0.5 * X[:, 1] + 0.4 * torch.tanh(2 * X[:, 2] * X[:, 3]) + 0.05 * torch.randn(600, generator=data)
WEIGHED = (torch.rand(600, generator=data) < 0.8).float()

STEPS = 45
for step in range(1, STEPS + 1):
    pick = torch.randint(0, 600, (48,), generator=data)
    frozen = {k: p.detach() for k, p in net.named_parameters()}
    g, values = per_animal(frozen, X[pick], Y[pick], WEIGHED[pick])
    updates, state = rule.apply(g, state)
    for k, p in net.named_parameters():
        p.grad = updates[k]
    sgd.step()
    info = state[0]
    if step % 3 == 0:
        mean = values.sum() / WEIGHED[pick].sum()
        print(f"round {step:2d} huber {mean.item():.6f} clipped {info['share']:.3f} unweighed {info['zero']}")

print(f"weights {sum(p.sum().item() for p in net.parameters()):.6f}")
