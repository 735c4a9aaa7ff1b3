"""Preston wear of lighthouse lens panels on the grinding bench.

Removal = coefficient * pressure * sliding speed * dwell. The slip of the lap and the
coefficient of the slurry are learned from gauge readings taken between two wets.
"""
import torch
from torch import nn


class Slip(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 12), nn.SiLU(), nn.Linear(12, 1))

    def forward(self, recipe, place):
        grip = torch.sigmoid(self.body(recipe))[:, 0]
        omega, stroke = recipe[:, 0], recipe[:, 1]
        x, y = place[:, 0], place[:, 1]
        along = -grip * omega * y
        across = grip * omega * x + grip * stroke
        return torch.hypot(along, across)


class Bench(nn.Module):
    def __init__(self):
        super().__init__()
        self.slip = Slip()
        self.slurry = nn.Parameter(torch.tensor(0.2))
        self.crown = nn.Parameter(torch.zeros(3))

    def pressure(self, place):
        r2 = place.square().sum(1)
        return torch.exp(self.crown[0] + self.crown[1] * r2 + self.crown[2] * r2 ** 2)

    def forward(self, recipe, place, dwell):
        return self.slurry * self.pressure(place) * self.slip(recipe, place) * dwell


class Log:
    """The book of the grinding shop: a sheet of gauge points a day."""

    def __init__(self, days, points=16):
        self.gen = torch.Generator().manual_seed(77)
        self.days, self.points = days, points

    def sheet(self, day):
        g = self.gen
        ring = torch.rand(self.points, generator=g) * 0.9 + 0.1
        turn = torch.rand(self.points, generator=g) * 6.2832
        place = torch.stack([ring * torch.cos(turn), ring * torch.sin(turn)], 1)
        recipe = torch.stack([0.5 + torch.rand(self.points, generator=g),
                              0.4 * torch.randint(0, 3, (self.points,), generator=g)], 1)
        dwell = 1 + torch.rand(self.points, generator=g)
        if day == 19:
            place[5], recipe[5, 1] = 0.0, 0.0
        speed = 0.7 * ((recipe[:, 0] * place[:, 1]) ** 2
                       + (recipe[:, 0] * place[:, 0] + recipe[:, 1]) ** 2).sqrt()
        removed = 0.9 * (1 - 0.3 * place.square().sum(1)) * speed * dwell
        return recipe, place, dwell, removed + 0.01 * torch.randn(self.points, generator=g)

    def __iter__(self):
        for day in range(1, self.days + 1):
            yield day, self.sheet(day)


def grind():
    torch.manual_seed(6)
    bench = Bench()
    sgd = torch.optim.SGD(bench.parameters(), lr=0.15, momentum=0.7)
    drop = torch.optim.lr_scheduler.StepLR(sgd, step_size=15, gamma=0.6)
    for day, (recipe, place, dwell, removed) in Log(34):
        sgd.zero_grad()
        miss = nn.functional.smooth_l1_loss(bench(recipe, place, dwell), removed)
        miss.backward()
        sgd.step()
        drop.step()
        print(f"day {day:02d}: misfit {miss.item():.6f} of {removed.mean().item():.4f} removed")
    return bench


if __name__ == "__main__":
    b = grind()
    print("sum of squares of the bench:", sum(p.detach().square().sum().item() for p in b.parameters()))
