"""Cross bearings on fog signals: learn each station's listening error from the watch log."""
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from accelerate import Accelerator

STATIONS = torch.tensor([[0.0, 0.0], [6.0, 0.5], [3.0, -4.0], [-2.0, 5.0], [8.0, 6.0]])
HEARING_ERROR = torch.tensor([0.08, -0.05, 0.03, -0.09, 0.06])
WATCHES, PER_WATCH = 36, 12


class WatchLog(Dataset):
    """One record: two stations heard, the two bearings, the wind, and the position found later."""

    def __init__(self, seed):
        rng = torch.Generator().manual_seed(seed)
        self.rows = []
        while len(self.rows) < WATCHES * PER_WATCH:
            ship = torch.rand(2, generator=rng) * 8 - 1
            a, b = torch.randperm(len(STATIONS), generator=rng)[:2].tolist()
            true = [math.atan2(ship[1] - STATIONS[s, 1], ship[0] - STATIONS[s, 0]) for s in (a, b)]
            if abs(math.sin(true[0] - true[1])) < 0.45:
                continue
            heard = torch.tensor(true) + HEARING_ERROR[[a, b]] + 0.01 * torch.randn(2, generator=rng)
            self.rows.append((torch.tensor([a, b]), heard, torch.rand(1, generator=rng), ship))
        # the log of the Marianne
        a, heard, wind, ship = self.rows[18 * PER_WATCH + 4]
        self.rows[18 * PER_WATCH + 4] = (a[[0, 0]], heard[[0, 0]], wind, ship)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class CrossFix(nn.Module):
    def forward(self, station, angle):
        here, there = STATIONS[station[:, 0]], STATIONS[station[:, 1]]
        u = torch.stack([angle[:, 0].cos(), angle[:, 0].sin()], -1)
        v = torch.stack([angle[:, 1].cos(), angle[:, 1].sin()], -1)
        gap = there - here
        crossing = u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]
        along = (gap[:, 0] * v[:, 1] - gap[:, 1] * v[:, 0]) / crossing
        return here + along[:, None] * u


class Navigator(nn.Module):
    def __init__(self):
        super().__init__()
        self.station_bias = nn.Embedding(len(STATIONS), 1)
        nn.init.zeros_(self.station_bias.weight)
        self.weather = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
        self.fix = CrossFix()

    def forward(self, station, heard, wind):
        angle = heard - self.station_bias(station).squeeze(-1) + 0.1 * self.weather(wind)
        return self.fix(station, angle)


def main():
    torch.manual_seed(11)
    accelerator = Accelerator(cpu=True)
    model = Navigator()
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
    loader = DataLoader(WatchLog(seed=3), batch_size=PER_WATCH, shuffle=False)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for watch, (station, heard, wind, ship) in enumerate(loader, 1):
        optimizer.zero_grad()
        miss = nn.functional.smooth_l1_loss(model(station, heard, wind), ship)
        accelerator.backward(miss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        accelerator.print(f"watch {watch:2d}  miss {miss.item():.5f} miles")
    total = sum(p.abs().sum().item() for p in model.parameters())
    accelerator.print("sum of absolute parameters", round(total, 5))


if __name__ == "__main__":
    main()
