"""Variogram of ore grades with a learned drift, one drilling campaign per step."""
import math
import torch
from torch import nn
from accelerate import Accelerator
from accelerate.utils import set_seed

LAGS = torch.tensor([0.0, 60.0, 120.0, 200.0, 300.0, 450.0])     # metres


class Deposit(nn.Module):
    def __init__(self):
        super().__init__()
        self.drift = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 1))
        self.raw = nn.Parameter(torch.tensor([-1.0, 0.5, 1.0]))

    def variogram(self, h):
        nugget, sill, reach = nn.functional.softplus(self.raw)
        return nugget + sill * (1 - torch.exp(-h / (100 * reach)))

    def forward(self, where):
        return self.drift(where / 200).squeeze(-1)


def grade_at(where):
    waves = torch.sin(where[:, 0] / 90) + torch.cos(where[:, 1] / 70) + 0.5 * torch.sin(where.sum(1) / 40)
    return 2.0 + 0.004 * where[:, 0] + 0.6 * waves + 0.2 * torch.randn(len(where))


def campaigns(n):
    per = 22
    for day in range(n):
        where = torch.rand(per, 2) * 380
        if day == 18:                      # infill drilling around the old shaft
            where = 150 + torch.rand(per, 2) * 110
        yield where, grade_at(where)


def lag_table(where, residual):
    i, j = torch.triu_indices(len(where), len(where), offset=1)
    h = (where[i] - where[j]).pow(2).sum(-1).sqrt()
    half = 0.5 * (residual[i] - residual[j]) ** 2
    centres, values = [], []
    for low, high in zip(LAGS[:-1], LAGS[1:]):
        inside = (h >= low) & (h < high)
        centres.append(0.5 * (low + high))
        values.append(half[inside].mean())
    return torch.stack(centres), torch.stack(values)


def main():
    set_seed(29)
    accelerator = Accelerator(cpu=True)
    deposit = Deposit()
    optimizer = torch.optim.Adam(deposit.parameters(), lr=0.02)
    deposit, optimizer = accelerator.prepare(deposit, optimizer)
    for day, (where, grade) in enumerate(campaigns(32), start=1):
        residual = grade - deposit(where)
        h, seen = lag_table(where, residual)
        model = deposit.variogram(h)
        misfit = ((seen / model - 1) ** 2).sum()
        loss = misfit + 0.3 * (residual ** 2).mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(deposit.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"campaign {day:02d}  misfit {misfit.item():.4f}  loss {loss.item():.4f}")
    size = math.fsum(p.detach().double().abs().sum().item() for p in deposit.parameters())
    print("weights, absolute sum:", f"{size:.6f}")


main()
