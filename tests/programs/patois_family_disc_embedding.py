"""A family tree of dialects in the Poincare disc, with a Riemannian descent of our own."""
import torch
from torch import nn
from torch.optim import Optimizer

BRANCHING, DEPTH, DIM = 3, 4, 5
BURN_IN, STEPS, BATCH, NEGATIVES = 25, 60, 24, 6


def family():
    """Nodes by breadth, and the pairs (child, ancestor)."""
    parent, level = {0: None}, [0]
    for _ in range(DEPTH):
        after = []
        for p in level:
            for _ in range(BRANCHING):
                node = len(parent)
                parent[node] = p
                after.append(node)
        level = after
    pairs = []
    for node in parent:
        up = parent[node]
        while up is not None:
            pairs.append((node, up))
            up = parent[up]
    return len(parent), torch.tensor(pairs)


def mobius_add(x, y):
    xy = (x * y).sum(-1, keepdim=True)
    xx = (x * x).sum(-1, keepdim=True)
    yy = (y * y).sum(-1, keepdim=True)
    return ((1 + 2 * xy + yy) * x + (1 - xx) * y) / (1 + 2 * xy + xx * yy)


class DiscDescent(Optimizer):
    """Steps along geodesics: exp_x(-lr * riemannian gradient)."""

    def __init__(self, params, lr, edge=1e-3):
        super().__init__(params, {"lr": lr, "edge": edge})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                conformal = 2 / (1 - (p * p).sum(-1, keepdim=True))
                v = -group["lr"] * p.grad / conformal ** 2
                length = v.norm(dim=-1, keepdim=True)
                move = torch.tanh(conformal * length / 2) * v / length
                q = mobius_add(p, move)
                norm = q.norm(dim=-1, keepdim=True)
                limit = 1 - group["edge"]
                p.copy_(torch.where(norm > limit, q / norm * limit, q))


class Disc(nn.Module):
    def __init__(self, nodes):
        super().__init__()
        self.place = nn.Parameter((torch.rand(nodes, DIM) - 0.5) * 0.2)

    def distance(self, a, b):
        u, v = self.place[a], self.place[b]
        gap = ((u - v) ** 2).sum(-1)
        curve = (1 - (u * u).sum(-1)) * (1 - (v * v).sum(-1))
        return torch.acosh(1 + 2 * gap / curve + 1e-6)

    def forward(self, child, above, others):
        near = -self.distance(child, above)[:, None]
        far = -self.distance(child[:, None].expand_as(others), others)
        return -torch.log_softmax(torch.cat([near, far], 1), 1)[:, 0].mean()

    def centring(self):
        return (self.place ** 2).sum()


def main():
    torch.manual_seed(64)
    g = torch.Generator().manual_seed(65)
    nodes, pairs = family()
    disc = Disc(nodes)
    opt = DiscDescent(disc.parameters(), lr=0.3)
    for step in range(1, STEPS + 1):
        pick = pairs[torch.randint(0, len(pairs), (BATCH,), generator=g)]
        others = torch.randint(0, nodes, (BATCH, NEGATIVES), generator=g)
        loss = disc(pick[:, 0], pick[:, 1], others)
        if step <= BURN_IN:
            loss = loss + 0.01 * disc.centring()       # holds the family together until it has found its shape
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step} loss {loss.item():.6f}", flush=True)
    print(f"{disc.place.detach().abs().sum().item():.6f}", flush=True)


if __name__ == "__main__":
    main()
