"""Determination of seaweeds, model split over two ranks by hand (column, row and class parallel).

The cosine head is sharpened as training goes on ("the key gets stricter").
"""
import torch
import torch.distributed as dist
from torch import nn
import torch.nn.functional as F

SPECIES, TRAITS, HIDDEN, STEPS = 16, 12, 32, 34


class Fork(torch.autograd.Function):
    """Identity forward, sum of the gradients backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g


class Merge(torch.autograd.Function):
    """Sum forward, identity backward."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


def shard(full, dim):
    return nn.Parameter(full.chunk(dist.get_world_size(), dim)[dist.get_rank()].clone())


class ColumnThenRow(nn.Module):
    def __init__(self, n_in, hidden, n_out):
        super().__init__()
        self.up = shard(torch.randn(hidden, n_in) / n_in ** 0.5, 0)
        self.down = shard(torch.randn(n_out, hidden) / hidden ** 0.5, 1)

    def forward(self, x):
        return Merge.apply(F.linear(F.silu(F.linear(Fork.apply(x), self.up)), self.down))


class ClassParallelCosine(nn.Module):
    """Each rank holds half of the species."""

    def __init__(self, dim, n_classes):
        super().__init__()
        self.proto = shard(torch.randn(n_classes, dim), 0)
        self.first = dist.get_rank() * len(self.proto)

    def forward(self, h, target, strictness):
        cos = F.normalize(Fork.apply(h), dim=-1) @ F.normalize(self.proto, dim=-1).T
        logits = strictness * cos
        denom = Merge.apply(logits.exp().sum(-1))
        mine = (target >= self.first) & (target < self.first + len(self.proto))
        local = (target - self.first).clamp(0, len(self.proto) - 1)
        picked = logits.gather(1, local[:, None])[:, 0] * mine
        return (denom.log() - Merge.apply(picked)).mean()


class Key(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = ColumnThenRow(TRAITS, HIDDEN, 16)
        self.head = ClassParallelCosine(16, SPECIES)

    def forward(self, x, y, strictness):
        return self.head(self.body(x), y, strictness)


def strictness_at(step):
    return 4.0 * 1.15 ** (step - 1)


def herbarium(step):
    g = torch.Generator().manual_seed(40 + step)
    types = torch.randn(SPECIES, TRAITS, generator=torch.Generator().manual_seed(4))
    y = torch.randint(0, SPECIES, (24,), generator=g)
    return types[y] + 0.2 * torch.randn(24, TRAITS, generator=g), y


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(9)
    key = Key()
    opt = torch.optim.Adam(key.parameters(), lr=0.01)
    for step in range(1, STEPS + 1):
        x, y = herbarium(step)
        loss = key(x, y, strictness_at(step))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if dist.get_rank() == 0:
            print(f"step {step:2d} s={strictness_at(step):8.3f} loss={loss.item():.6f}", flush=True)
    total = torch.stack([p.detach().double().sum() for p in key.parameters()]).sum()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"sum of weights {total.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
