"""Where does a hamlet send its children to school? Attention over footpaths with a segment softmax.

Every graph is a valley with hamlets and footpaths; a node regresses its share of traffic.
"""
import dataclasses
import random

import torch
from torch import nn
import torch.nn.functional as F


@dataclasses.dataclass
class Valley:
    x: torch.Tensor            # [n, 4]
    src: torch.Tensor
    dst: torch.Tensor
    km: torch.Tensor           # length of every path
    y: torch.Tensor


def make_valley(rng, gen, n=10, island=False):
    pos = torch.rand(n, 2, generator=gen) * 12
    if island:
        pos[-1] += 900.0       # the exclave across the border, on the county's list all the same
    src, dst = [], []
    dist = torch.cdist(pos, pos)
    for i in range(n):
        for j in dist[i].topk(4, largest=False).indices.tolist()[1:]:
            src += [j]
            dst += [i]
    km = dist[torch.tensor(src), torch.tensor(dst)]
    people = torch.rand(n, generator=gen) + 0.2
    x = torch.stack([people, torch.rand(n, generator=gen), torch.ones(n), pos[:, 1] / (1 + pos[:, 0])], 1)
    pull = torch.zeros(n).index_add(0, torch.tensor(dst), people[torch.tensor(src)] * torch.exp(-km / 3))
    return Valley(x, torch.tensor(src), torch.tensor(dst), km, pull)


def batch_up(valleys):
    offset, parts = 0, {f: [] for f in ("x", "src", "dst", "km", "y")}
    for v in valleys:
        parts["x"].append(v.x)
        parts["src"].append(v.src + offset)
        parts["dst"].append(v.dst + offset)
        parts["km"].append(v.km)
        parts["y"].append(v.y)
        offset += len(v.x)
    return Valley(*(torch.cat(parts[f]) for f in ("x", "src", "dst", "km", "y")))


def segment_max(values, index, n):
    top = torch.zeros(n, values.shape[1])
    return top.scatter_reduce(0, index[:, None].expand_as(values), values, "amax")


def segment_sum(values, index, n):
    return torch.zeros(n, *values.shape[1:]).index_add(0, index, values)


def segment_softmax(scores, index, n):
    """Softmax over the edges that end in the same node, shifted by their maximum."""
    shifted = scores - segment_max(scores.detach(), index, n)[index]
    e = shifted.exp()
    total = segment_sum(e, index, n)
    return e / total[index]


class PathAttention(nn.Module):
    def __init__(self, width, heads=2):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.decay = nn.Parameter(torch.full((heads,), -1.0))

    def forward(self, h, g):
        n, w = h.shape
        q, k, v = (f(h).view(n, self.heads, -1) for f in (self.q, self.k, self.v))
        scores = (q[g.dst] * k[g.src]).sum(-1) / (w // self.heads) ** 0.5
        scores = scores - F.softplus(self.decay) * g.km[:, None]
        weight = segment_softmax(scores, g.dst, n)
        return segment_sum(weight[..., None] * v[g.src], g.dst, n).reshape(n, w)


class ValleyNet(nn.Module):
    def __init__(self, width=24, depth=2):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.layers = nn.ModuleList(PathAttention(width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, g):
        h = self.embed(g.x)
        for layer, norm in zip(self.layers, self.norms):
            h = h + layer(norm(h), g)
        return self.head(h).squeeze(-1)


def county(seed):
    rng, gen = random.Random(seed), torch.Generator().manual_seed(seed)
    return [make_valley(rng, gen, n=rng.randint(7, 13), island=(i == 101)) for i in range(132)]


def batches(valleys, size, epochs, seed):
    rng = random.Random(seed)
    for _ in range(epochs):
        order = list(range(len(valleys)))
        rng.shuffle(order)
        for a in range(0, len(order), size):
            yield batch_up([valleys[i] for i in order[a:a + size]])


def main():
    torch.manual_seed(40)
    valleys = county(40)
    net = ValleyNet()
    opt = torch.optim.RMSprop(net.parameters(), lr=2e-3, momentum=0.5)
    for step, g in enumerate(batches(valleys, 6, 2, seed=2), 1):
        loss = F.smooth_l1_loss(net(g), g.y)
        opt.zero_grad()
        loss.backward()
        print(f"{step:3d} nodes {len(g.x)} paths {len(g.src)} loss {loss.item():.7f}", flush=True)
        opt.step()
    print(f"{sum(p.abs().sum().item() for p in net.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
