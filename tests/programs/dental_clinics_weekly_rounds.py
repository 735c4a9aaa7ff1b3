"""Federated averaging among five dental clinics: will a patient come to the appointment?"""
import copy
import math

import torch
import torch.nn.functional as F
from torch import nn

NAMES = ["harbour", "old town", "station", "hill", "mill lane"]
torch.manual_seed(1)
dice = torch.Generator().manual_seed(40)


def patients(clinic, count):
    age = torch.rand(count, generator=dice)
    lead = torch.rand(count, generator=dice) * 2 - 1
    missed = torch.rand(count, generator=dice)
    logit = 1.5 * age - 2.5 * missed - 1.2 * lead + 0.2 * (clinic - 2)
    came = (torch.rand(count, generator=dice) < torch.sigmoid(logit)).float()
    missed[torch.rand(count, generator=dice) < 0.3] = math.nan       # new patients have no history
    return torch.stack([age, lead, missed], 1), came


class Attendance(nn.Module):
    def __init__(self):
        super().__init__()
        self.unknown = nn.Parameter(torch.zeros(3))
        self.net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, x):
        gap = torch.isnan(x)
        filled = torch.where(gap, self.unknown, x)
        return self.net(torch.cat([filled, gap.float()], 1)).squeeze(1)


def local_fit(model, x, y, passes):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for _ in range(passes):
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(x), y).backward()
        optimizer.step()
    return passes


def average(models, sizes):
    total = sum(sizes)
    mean = copy.deepcopy(models[0].state_dict())
    for key in mean:
        mean[key] = sum(m.state_dict()[key] * (n / total) for m, n in zip(models, sizes))
    return mean


def run(weeks=9, passes=2):
    shared = Attendance()
    best = {name: math.inf for name in NAMES}
    local_steps = 0
    for week in range(1, weeks + 1):
        sizes = torch.poisson(torch.tensor([30.0, 18.0, 40.0, 9.0, 14.0]), generator=dice).int().tolist()
        if week in (4, 5):
            sizes[3] = 0                                               # the hill clinic is on holiday
        if week == 7:
            sizes = [sizes[0], 0, 0, 0, 0]
        models, before = [], []
        for clinic, size in enumerate(sizes):
            x, y = patients(clinic, size)
            mine = copy.deepcopy(shared)
            with torch.no_grad():
                before.append(F.binary_cross_entropy_with_logits(mine(x), y))
            best[NAMES[clinic]] = min(best[NAMES[clinic]], before[-1].item()) if size else best[NAMES[clinic]]
            if size:
                local_steps += local_fit(mine, x, y, passes)
            models.append(mine)
        shared.load_state_dict(average(models, sizes))
        before = torch.stack(before)
        print(f"week {week}: loss {before.nanmean().item():.4f}, {int(before.isnan().sum())} closed, {sum(sizes)} patients")
    print("best", " ".join(f"{k}={v:.3f}" for k, v in best.items()))
    print("local steps", local_steps)
    print("squares of the shared weights", f"{sum(p.detach().pow(2).sum().item() for p in shared.parameters()):.4f}")


run()
