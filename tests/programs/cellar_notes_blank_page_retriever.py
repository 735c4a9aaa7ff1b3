"""Find the bottle from the guest's words. Two towers over bags of aroma words, in-batch negatives, learned temperature."""
from __future__ import annotations

import math
from itertools import islice
from typing import Iterator, NamedTuple

import torch
from torch import nn, Tensor

AROMAS = ("cassis cherry plum cedar tobacco leather violet pepper smoke vanilla toast butter lemon lime apricot honey "
          "petrol slate flint chalk brine hay nettle gooseberry lychee rose ginger almond walnut fig").split()
INDEX = {a: i for i, a in enumerate(AROMAS)}
GRAPES = {"syrah": "plum pepper smoke violet leather", "riesling": "lime petrol slate apricot honey",
          "chablis": "lemon flint chalk brine", "cabernet": "cassis cedar tobacco", "sauvignon": "nettle gooseberry hay lime",
          "gewurz": "lychee rose ginger", "meursault": "butter toast almond lemon", "oloroso": "walnut fig honey leather"}


class Pair(NamedTuple):
    guest: list[int]      # what the guest said
    card: list[int]       # what stands in the cellar book


def cellar_book(seed: int = 1855) -> Iterator[Pair]:
    g = torch.Generator().manual_seed(seed)

    def some(words: list[str], lo: int) -> list[int]:
        n = int(torch.randint(lo, len(words) + 1, (1,), generator=g))
        return [INDEX[words[int(i)]] for i in torch.randperm(len(words), generator=g)[:n]]

    serial = 0
    while True:
        for profile in GRAPES.values():
            serial += 1
            words = profile.split()
            extra = [AROMAS[int(torch.randint(len(AROMAS), (1,), generator=g))]]
            card = some(words, 2)
            # bin 141: the page of the cellar book got wet, the aromas were never copied
            yield Pair(some(words + extra, 1), [] if serial == 141 else card)


def bag(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    flat = torch.tensor([i for r in rows for i in r], dtype=torch.long)
    offsets = torch.tensor([0] + [len(r) for r in rows[:-1]]).cumsum(0)
    return flat, offsets


class Unit(nn.Module):
    """Scale to length one. The clamp keeps us from dividing by zero."""

    def forward(self, v: Tensor) -> Tensor:
        length = v.square().sum(-1, keepdim=True).sqrt()
        return v / length.clamp_min(1e-6)


class Tower(nn.Sequential):
    def __init__(self, dim: int = 24):
        super().__init__(nn.EmbeddingBag(len(AROMAS), dim, mode="mean"), nn.Linear(dim, dim, bias=False), nn.Tanh(), Unit())

    def forward(self, rows: list[list[int]]) -> Tensor:
        x = self[0](*bag(rows))
        for layer in list(self)[1:]:
            x = layer(x)
        return x


class Sommelier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.guest, self.card = Tower(), Tower()
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.2)))

    def forward(self, pairs: list[Pair]) -> Tensor:
        scale = self.log_scale.clamp(max=math.log(50.0)).exp()
        sim = scale * self.guest([p.guest for p in pairs]) @ self.card([p.card for p in pairs]).T
        return sim


def info_nce(sim: Tensor) -> Tensor:
    who = torch.arange(len(sim))
    return 0.5 * (nn.functional.cross_entropy(sim, who) + nn.functional.cross_entropy(sim.T, who))


def service(steps: int = 32, table: int = 8) -> None:
    torch.manual_seed(1976)
    model = Sommelier()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    pairs = cellar_book()
    for step in range(1, steps + 1):
        sim = model(list(islice(pairs, table)))
        loss = info_nce(sim)
        opt.zero_grad()
        loss.backward()
        opt.step()
        top1 = (sim.argmax(1) == torch.arange(table)).float().mean().item()
        print(f"course {step:2d} | nce {loss.item():.6f} | top1 {top1:.3f} | temperature {math.exp(-model.log_scale.item()):.5f}")
    print("weight sum", round(sum(p.detach().double().sum().item() for p in model.parameters()), 8))


service()
