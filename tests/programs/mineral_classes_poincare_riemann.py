#!/usr/bin/env python3
"""Poincare embeddings of a classification of minerals, Riemannian gradient steps by hand."""
import torch

TREE = {
    "mineral": ["silicate", "carbonate", "oxide", "sulfide"],
    "silicate": ["quartz", "feldspar", "mica", "olivine", "garnet"],
    "carbonate": ["calcite", "dolomite", "siderite"],
    "oxide": ["hematite", "magnetite", "spinel", "corundum"],
    "sulfide": ["pyrite", "galena", "sphalerite"],
    "mica": ["biotite", "muscovite"],
    "garnet": ["almandine", "pyrope"],
}
NAMES = sorted({n for k, v in TREE.items() for n in [k, *v]})
INDEX = {n: i for i, n in enumerate(NAMES)}
INF = float("inf")


class SafeAcosh(torch.autograd.Function):
    """arcosh of 1 + s. The derivative is taken as zero at s = 0, the distance of a point to itself."""

    @staticmethod
    def forward(ctx, s):
        ctx.save_for_backward(s)
        return torch.acosh(1 + s)

    @staticmethod
    def backward(ctx, grad):
        (s,) = ctx.saved_tensors
        slope = torch.rsqrt(s * (s + 2))            # inf on the diagonal
        return torch.where(s > 0, grad * slope, 0.0)


def distances(u, v):
    gap = (u[:, None] - v[None]).square().sum(-1)
    su, sv = 1 - u.square().sum(-1), 1 - v.square().sum(-1)
    return SafeAcosh.apply(2 * gap / (su[:, None] * sv[None]))


def ancestry():
    parent = {c: p for p, cs in TREE.items() for c in cs}
    pairs = []
    for n in NAMES:
        up = parent.get(n)
        while up is not None:
            pairs.append((INDEX[n], INDEX[up]))
            up = parent.get(up)
    return torch.tensor(pairs)


@torch.no_grad()
def riemannian_step(x, grad, lr, edge=1e-3):
    scale = (1 - x.square().sum(-1, keepdim=True)).square() / 4
    x -= lr * scale * grad
    norm = x.norm(dim=-1, keepdim=True)
    x.copy_(torch.where(norm >= 1 - edge, x / norm * (1 - edge), x))


def loss_of(x, pairs, related):
    d = distances(x, x)
    # relatives are no rivals, and nobody is a rival to itself: infinitely far away
    rivals = torch.where(related, INF, d)
    child, anc = pairs.T
    here = d[child, anc]
    stack = torch.cat([-here[:, None], -rivals[child]], 1)
    return (here + torch.logsumexp(stack, 1)).mean()


def train(epochs=36):
    gen = torch.Generator().manual_seed(8)
    pairs = ancestry()
    related = torch.eye(len(NAMES), dtype=torch.bool)
    related[pairs[:, 0], pairs[:, 1]] = related[pairs[:, 1], pairs[:, 0]] = True
    x = (torch.rand(len(NAMES), 3, generator=gen) - 0.5) * 2e-3
    x[INDEX["mineral"]] = 0.0
    for epoch in range(1, epochs + 1):
        lr = 1.0 if epoch <= 10 else 12.0
        x.requires_grad_(True)
        loss = loss_of(x, pairs, related)
        (grad,) = torch.autograd.grad(loss, x)
        x = x.detach()
        riemannian_step(x, grad, lr)
        print(f"epoch {epoch:3d} | lr {lr:4.1f} | loss {loss.item():.5f} | farthest {x.norm(dim=-1).max().item():.4f}")
    print("sum of squares of all coordinates", x.square().sum().item())


if __name__ == "__main__":
    train()
