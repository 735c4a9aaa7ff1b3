"""Fern spore images (as 5x5 texture maps): autoencoder warm start, then a rarity detector."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn


class Recipe(Protocol):
    steps: int
    lr: float
    batch: int


@dataclass(frozen=True)
class WarmStart:
    steps: int = 10
    lr: float = 3e-3
    batch: int = 16
    noise: float = 0.2


@dataclass(frozen=True)
class Detector:
    steps: int = 25
    lr: float = 5e-3
    batch: int = 16
    rare_weight: float = 0.5
    freeze: tuple[str, ...] = field(default=("encoder.0",))


class Registry(dict):
    def __call__(self, key: str) -> Callable:
        def deco(cls):
            self[key] = cls
            return cls

        return deco


TRAINERS: dict[str, type] = Registry()


class Spores:
    def __init__(self, n: int, seed: int) -> None:
        g = torch.Generator().manual_seed(seed)
        self.y = (torch.rand(n, generator=g) < 0.3).float()
        base = torch.randn(2, 25, generator=g)
        self.x = base[self.y.long()] * 0.5 + torch.randn(n, 25, generator=g)
        # slides 192..207 come from the common polypody only
        keep = torch.arange(n)
        self.y[(keep >= 192) & (keep < 208)] = 0.0

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from zip(self.x.split(size), self.y.split(size), strict=False)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(25, 32), nn.GELU(), nn.Linear(32, 12))
        self.decoder = nn.Linear(12, 25)
        self.score = nn.Linear(12, 1)


class Trainer:
    """Template: subclasses say what is trained and what is lost."""

    tag = "?"

    def __init__(self, net: Net, data: Spores, recipe: Recipe) -> None:
        self.net, self.data, self.recipe = net, data, recipe
        self.opt = torch.optim.AdamW(self.trainable(), lr=recipe.lr)

    def trainable(self):
        return [p for p in self.net.parameters() if p.requires_grad]

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def after_step(self, i: int) -> None:
        pass

    def fit(self) -> None:
        for i, (x, y) in zip(range(self.recipe.steps), self.data.batches(self.recipe.batch), strict=False):
            self.opt.zero_grad()
            value = self.loss(x, y)
            value.backward()
            self.opt.step()
            self.after_step(i)
            print(f"[{self.tag}] {i + 1:3d} {value.item():.7f}")


@TRAINERS("warm")
class WarmTrainer(Trainer):
    tag = "warm"

    def trainable(self):
        return [*self.net.encoder.parameters(), *self.net.decoder.parameters()]

    def loss(self, x, y):
        noisy = x + self.recipe.noise * torch.randn_like(x)
        return (self.net.decoder(self.net.encoder(noisy)) - x).square().mean()


@TRAINERS("detect")
class DetectTrainer(Trainer):
    tag = "detect"

    def trainable(self):
        for name in self.recipe.freeze:
            self.net.get_submodule(name).requires_grad_(False)
        return [*filter(lambda p: p.requires_grad, self.net.encoder.parameters()), *self.net.score.parameters()]

    def loss(self, x, y):
        z = self.net.score(self.net.encoder(x)).squeeze(1)
        each = nn.functional.binary_cross_entropy_with_logits(z, y, reduction="none")
        # balanced: the rare species counts as much as all the common ones
        rare = (each * y).sum() / y.sum()
        common = (each * (1 - y)).sum() / (1 - y).sum()
        return self.recipe.rare_weight * rare + (1 - self.recipe.rare_weight) * common


if __name__ == "__main__":
    torch.manual_seed(4)
    torch.set_num_threads(1)
    net, data = Net(), Spores(480, 8)
    for key, recipe in (("warm", WarmStart()), ("detect", Detector())):
        TRAINERS[key](net, data, recipe).fit()
    print("sum", sum(p.double().sum().item() for p in net.parameters()))
