"""Liquid water of a fog from holograms: each frame is a set of droplets of any size."""
from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import nn, Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass
class Frame:
    droplets: Tensor            # n x 4: place in the frame, logarithm of the diameter
    water: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.water = torch.log1p((self.droplets[:, 3] * 1.5).exp().sum())


class Hologram:
    def __init__(self, seed: int, density: float) -> None:
        self.rng = torch.Generator().manual_seed(seed)
        self.density = density

    def frame(self) -> Frame:
        n = 1 + int(torch.poisson(torch.tensor(self.density), generator=self.rng))
        place = torch.rand(n, 3, generator=self.rng)
        mode = 0.5 * torch.randn(1, generator=self.rng)
        size = mode + 0.4 * torch.randn(n, 1, generator=self.rng)
        return Frame(torch.cat([place, size], 1))

    def batch(self, size: int) -> tuple[Tensor, Tensor, Tensor]:
        frames = [self.frame() for _ in range(size)]
        sets = pad_sequence([f.droplets for f in frames], batch_first=True)
        count = torch.tensor([len(f.droplets) for f in frames])
        present = torch.arange(sets.shape[1]) < count[:, None]
        return sets, present.float(), torch.stack([f.water for f in frames])


class Pool(nn.Module):
    def forward(self, h: Tensor, present: Tensor) -> Tensor:
        w = present[..., None]
        n = w.sum(1)
        centre = (w * h).sum(1) / n
        var = (w * (h - centre[:, None]) ** 2).sum(1) / n
        return torch.cat([centre, torch.sqrt(var), n.log()], 1)


class FogNet(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, width))
        self.pool = Pool()
        self.rho = nn.Sequential(nn.Linear(2 * width + 1, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, sets: Tensor, present: Tensor) -> Tensor:
        return self.rho(self.pool(self.phi(sets), present)).squeeze(1)


def fit(net: FogNet, source: Hologram, rounds: int = 34) -> None:
    opt = torch.optim.NAdam(net.parameters(), lr=4e-3)
    for r in range(rounds):
        opt.zero_grad()
        seen = 0.0
        for _ in range(2):
            sets, present, water = source.batch(12)
            loss = nn.functional.huber_loss(net(sets, present), water) / 2
            loss.backward()
            seen += loss.item()
        opt.step()
        print(f"round {r + 1:2d}   huber {seen:.5f}")


if __name__ == "__main__":
    torch.manual_seed(1)
    network = FogNet()
    fit(network, Hologram(seed=18, density=6.0))
    print("sum of squares:", sum(p.detach().pow(2).sum().item() for p in network.parameters()))
