# Age of fish from otolith ring widths.  A stack of coupling layers that does not keep
# its activations: the backward pass inverts each layer and recomputes what it needs.
# (c) fisheries lab, M. -- memory went from 11 GB to 2 GB on the full set
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 77
random.seed(SEED); np.random.seed(SEED); torch.manual_seed(SEED)
torch.set_num_threads(1)

DIM = 8     # per half


class InvertibleCoupling(torch.autograd.Function):
    """y1 = x1 ;  y2 = x2 * sigmoid(s(x1)) + t(x1)

    Saves the output only.  The output of the last layer is kept in `store`, each layer's
    backward replaces it by its own reconstructed input.
    """

    @staticmethod
    def forward(ctx, x1, x2, net, store, *params):
        with torch.no_grad():
            s, t = net(x1).chunk(2, dim=-1)
            y2 = x2 * torch.sigmoid(s + 2.0) + t
        ctx.net, ctx.store = net, store
        store["y"] = (x1.detach().clone(), y2.detach().clone())
        return x1.clone(), y2

    @staticmethod
    def backward(ctx, g1, g2):
        y1, y2 = ctx.store["y"]
        params = list(ctx.net.parameters())
        with torch.enable_grad():
            x1 = y1.detach().requires_grad_()
            s, t = ctx.net(x1).chunk(2, dim=-1)
            gate = torch.sigmoid(s + 2.0)
            # invert the layer
            x2 = ((y2 - t.detach()) / gate.detach()).requires_grad_()
            out = x2 * gate + t
        grads = torch.autograd.grad(out, [x1, x2, *params], g2)
        ctx.store["y"] = (x1.detach(), x2.detach())
        return (g1 + grads[0], grads[1], None, None, *grads[2:])


class Flip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, store):
        ctx.store = store
        store["y"] = tuple(reversed(store["y"]))
        return b.clone(), a.clone()

    @staticmethod
    def backward(ctx, gb, ga):
        ctx.store["y"] = tuple(reversed(ctx.store["y"]))
        return ga, gb, None


class RingStack(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 24), nn.ReLU(), nn.Linear(24, 2 * DIM)) for _ in range(depth))
        self.age = nn.Linear(2 * DIM, 1)

    def forward(self, x):
        store = {}
        a, b = x.chunk(2, dim=-1)
        for net in self.nets:
            a, b = InvertibleCoupling.apply(a, b, net, store, *net.parameters())
            a, b = Flip.apply(a, b, store)
        return self.age(torch.tanh(torch.cat([a, b], -1))).squeeze(-1)


def otoliths(n):
    rng = np.random.default_rng(3)
    age = rng.uniform(1, 9, n)
    rings = rng.normal(0, 0.4, (n, 2 * DIM)) + np.sin(age[:, None] * np.linspace(0.1, 1.2, 2 * DIM))
    # fish 333 was measured in nanometres instead of in the normalised unit
    rings[333] *= 4000
    return torch.tensor(rings, dtype=torch.float32), torch.tensor(age / 5 - 1, dtype=torch.float32)


def run():
    x, y = otoliths(16 * 36)
    model = RingStack()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 36)
    for it, (xb, yb) in enumerate(zip(x.split(16), y.split(16)), start=1):
        # x needs grad, or the first Function would be cut off
        loss = F.smooth_l1_loss(model(xb.requires_grad_()), yb)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        print("it %3d  huber %.6f  lr %.5f" % (it, loss.item(), sched.get_last_lr()[0]))
    with torch.no_grad():
        total = sum(p.double().sum() for p in model.parameters())
    print("parameters sum to %.8f" % total)


run()
