# Calibrate a horizontal sundial (gnomon's elevation, plate's squeeze, refraction per cos H) from readings on many days.
# LBFGS, float64, one day of readings per step; yesterday's estimate is where today starts.
import math
import torch

torch.set_default_dtype(torch.float64)
torch.manual_seed(52)
rng = torch.Generator().manual_seed(52)

TRUE = dict(elev=math.radians(52.2), squeeze=1.06, bend=0.02)
DAYS = 30
SUNDAYS = (12, 19, 26)          # somebody is there at noon on these (first ones of the season were cloudy)


class Dial(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.elev = torch.nn.Parameter(torch.tensor(math.radians(45.0)))
        self.squeeze = torch.nn.Parameter(torch.tensor(1.0))
        self.bend = torch.nn.Parameter(torch.tensor(0.0))

    def forward(self, hour_angle):
        h = hour_angle * (1 + self.bend * torch.cos(hour_angle))
        return torch.atan2(self.squeeze * torch.sin(self.elev) * torch.sin(h), torch.cos(h))


def arc(a, b):
    """distance on the circle, 0..pi"""
    return torch.acos(torch.cos(a - b).clamp(-1.0, 1.0))


def readings(day):
    hours = torch.tensor([8.0, 9.0, 10.5, 13.5, 15.0, 16.0])
    if day in SUNDAYS:
        hours = torch.cat([hours, torch.tensor([12.0])])
    ha = (hours - 12.0) * math.pi / 12
    h = ha * (1 + TRUE["bend"] * torch.cos(ha))
    shadow = torch.atan2(TRUE["squeeze"] * math.sin(TRUE["elev"]) * torch.sin(h), torch.cos(h))
    noise = 0.01 * torch.randn(len(hours), generator=rng)
    # by construction the noon line is the zero of the plate: who reads at noon sees the shadow on the line
    noise = torch.where(hours == 12.0, torch.zeros(()), noise)
    return ha, shadow + noise


def prior(dial):
    return 0.05 * (dial.squeeze - 1) ** 2 + 0.5 * dial.bend ** 2


dial = Dial()
opt = torch.optim.LBFGS(dial.parameters(), lr=0.5, max_iter=3, history_size=5)

for day in range(1, DAYS + 1):
    ha, shadow = readings(day)

    def closure():
        opt.zero_grad()
        miss = arc(dial(ha), shadow)
        loss = (miss ** 2).mean() + prior(dial)
        loss.backward()
        return loss

    loss = opt.step(closure)
    print(f"day {day:2d}  loss {loss.item():.10f}  elevation {math.degrees(dial.elev.item()):.6f}", flush=True)

print(f"{sum(p.detach().abs().sum().item() for p in dial.parameters()):.10f}", flush=True)
