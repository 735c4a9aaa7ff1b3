"""Graph transformer for traffic volumes: shortest-path distances are a linear attention bias (ALiBi on a road network).

Junctions that cannot reach one another have the distance infinity, as Floyd-Warshall returns it.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = dict(nodes=14, graphs=120, batch=12, dim=24, heads=4, layers=2, lr=2e-3, epochs=4, seed=3)


def floyd_warshall(weights):
    dist = weights.clone()
    dist.fill_diagonal_(0.0)
    for k in range(len(dist)):
        dist = torch.minimum(dist, dist[:, k, None] + dist[None, k, :])
    return dist


def make_city(n, g):
    length = 0.5 + torch.rand(n, n, generator=g)
    road = torch.rand(n, n, generator=g) < 1.6 / n
    weights = torch.where(road | road.T, (length + length.T) / 2, torch.tensor(math.inf))
    dist = floyd_warshall(weights)
    population = torch.rand(n, generator=g)
    volume = (torch.exp(-dist) * population[None]).sum(1).log1p()
    features = torch.stack([population, (road | road.T).float().sum(1) / 4, torch.randn(n, generator=g)], 1)
    return features, dist, volume


def collate(cities):
    return [torch.stack(column) for column in zip(*cities)]


class DistanceAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        slopes = torch.tensor([2.0 ** -(i + 1) for i in range(heads)])
        self.register_buffer("slopes", slopes[None, :, None, None])

    def forward(self, x, dist):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        bias = -self.slopes * dist[:, None]
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(x.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = DistanceAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, dist):
        x = x + self.attention(self.norm1(x), dist)
        return x + self.mlp(self.norm2(x))


class TrafficTransformer(nn.Module):
    def __init__(self, dim, heads, layers):
        super().__init__()
        self.embed = nn.Linear(3, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, 1)

    def forward(self, features, dist):
        x = self.embed(features)
        for block in self.blocks:
            x = block(x, dist)
        return self.head(x).squeeze(-1)


def main(cfg):
    torch.manual_seed(cfg["seed"])
    g = torch.Generator().manual_seed(cfg["seed"])
    cities = [make_city(cfg["nodes"], g) for _ in range(cfg["graphs"])]
    model = TrafficTransformer(cfg["dim"], cfg["heads"], cfg["layers"])
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, cfg["epochs"])
    for epoch in range(cfg["epochs"]):
        order = torch.randperm(len(cities)).tolist()
        for start in range(0, len(order), cfg["batch"]):
            features, dist, volume = collate([cities[i] for i in order[start:start + cfg["batch"]]])
            prediction = model(features, dist)
            loss = F.huber_loss(prediction, volume)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            print(f"epoch {epoch} batch {start // cfg['batch']} huber {loss.item():.6f} reach {dist.isfinite().float().mean():.3f}")
        schedule.step()
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main(CONFIG)
