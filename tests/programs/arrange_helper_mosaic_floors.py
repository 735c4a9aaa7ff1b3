"""Date of Roman mosaic floors from their tesserae, with a home-made `arrange` (einops is not allowed on
the museum's machine) and an itertools pipeline.
"""
import itertools as it
import operator
import re
from functools import reduce

import torch
from torch import nn

SIDE, PATCH, DIM = 12, 4, 16


def arrange(x, pattern, **known):
    """A very small einops: 'b (h p) (w q) -> b (h w) (p q)'."""
    left, right = (re.findall(r"\(([^)]*)\)|(\w+)", side) for side in pattern.split("->"))
    groups = [(a or b).split() for a, b in left]
    sizes = dict(known)
    for names, size in zip(groups, x.shape):
        free = [n for n in names if n not in sizes]
        rest = reduce(operator.mul, (sizes[n] for n in names if n in sizes), 1)
        for n in free:
            sizes[n] = size // rest
    flat = list(it.chain.from_iterable(groups))
    x = x.reshape([sizes[n] for n in flat])
    target = [(a or b).split() for a, b in right]
    x = x.permute([flat.index(n) for n in it.chain.from_iterable(target)])
    return x.reshape([reduce(operator.mul, (sizes[n] for n in names), 1) for names in target])


class FloorDater(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(PATCH * PATCH, DIM)
        self.mix = nn.MultiheadAttention(DIM, 2, batch_first=True)
        self.head = nn.Linear(DIM, 1)

    def forward(self, floor):
        tiles = arrange(floor, "b (h p) (w q) -> b (h w) (p q)", p=PATCH, q=PATCH)
        h = torch.tanh(self.patch(tiles))
        h = h + self.mix(h, h, h, need_weights=False)[0]
        return self.head(h.mean(1)).squeeze(1)


def photographs(gen):
    """Floors as brightness maps, and the century (scaled)."""
    for n in it.count():
        width = SIDE + 2 if n == 101 else SIDE      # Hall of the Dolphins: scanned with its ruler
        age = torch.rand((), generator=gen)
        floor = torch.rand(SIDE, width, generator=gen) * (0.5 + age)
        yield floor, age * 4 - 2


def by_size(pairs, size):
    """Batches of consecutive floors of one size; a batch is closed early when the size changes."""
    for _, run in it.groupby(pairs, key=lambda pair: pair[0].shape):
        while block := list(it.islice(run, size)):
            floors, ages = zip(*block)
            yield torch.stack(floors), torch.stack(ages)


def train(model, batches, steps):
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step, (floors, ages) in enumerate(it.islice(batches, steps), 1):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(floors), ages)
        loss.backward()
        opt.step()
        print(f"floor batch {step:2d}: {loss.item():.6f}")


def main():
    torch.manual_seed(79)
    gen = torch.Generator().manual_seed(79)
    model = FloorDater()
    train(model, by_size(photographs(gen), 8), 30)
    print(f"weights {sum(p.double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
