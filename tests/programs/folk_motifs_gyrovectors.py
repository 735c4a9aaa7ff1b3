# Folk tales in the ball: tales of one type lie close, and the metric of the tale tree
# (edges counted from type to type) is fitted by gyrovector distances.
import itertools

import torch

torch.manual_seed(40)


def mobius_add(x, y):
    xy = (x * y).sum(-1, keepdim=True)
    x2 = x.pow(2).sum(-1, keepdim=True)
    y2 = y.pow(2).sum(-1, keepdim=True)
    return ((1 + 2 * xy + y2) * x + (1 - x2) * y) / (1 + 2 * xy + x2 * y2)


def from_tangent(v):
    n = v.norm(dim=-1, keepdim=True)
    return torch.tanh(n) * v / n


def gyro_distance(x, y):
    gap = mobius_add(-x, y).norm(dim=-1)
    return 2 * torch.atanh(gap)


def tale_tree(depth=4, branch=2):
    parent = [None]
    layer = [0]
    for _ in range(depth):
        nxt = []
        for p in layer:
            for _ in range(branch):
                parent.append(p)
                nxt.append(len(parent) - 1)
        layer = nxt
    return parent


def path(parent, i):
    out = [i]
    while parent[out[-1]] is not None:
        out.append(parent[out[-1]])
    return out


def edges_between(parent, i, j):
    a, b = path(parent, i), path(parent, j)
    common = len(set(a) & set(b))
    return len(a) + len(b) - 2 * common


parent = tale_tree()
pairs = list(itertools.combinations(range(len(parent)), 2))
left = torch.tensor([p[0] for p in pairs])
right = torch.tensor([p[1] for p in pairs])
STRETCH = 5.0   # length of one edge
wanted = torch.tensor([STRETCH * edges_between(parent, i, j) for i, j in pairs])

tangents = torch.nn.Parameter(torch.randn(len(parent), 5) * 0.4)
opt = torch.optim.Adam([tangents], lr=0.15, betas=(0.8, 0.99))

for epoch in range(1, 41):
    ball = from_tangent(tangents)
    d = gyro_distance(ball[left], ball[right])
    stress = ((d - wanted) / wanted).pow(2).mean()
    opt.zero_grad()
    stress.backward()
    opt.step()
    print("epoch", epoch, "stress", round(stress.item(), 5), "rim", round(ball.detach().norm(dim=1).max().item(), 5))

print("sum of |tangent|", tangents.detach().abs().sum().item())
