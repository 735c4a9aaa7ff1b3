"""Wind turbine power curve: weather to electric power in watts, float16 autocast with loss scaling."""
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Hyper:
    lr: float = 0.02
    batch: int = 64
    steps: int = 60
    init_scale: float = 16.0
    width: int = 96


class PowerCurve(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.body = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.power = nn.Linear(width, 1)

    def forward(self, weather):
        return self.power(self.body(self.embed(weather))).squeeze(-1)


class WindFarm:
    """Wind speed, direction (sin, cos) and air density; a 150 kW machine with cut-in and rated speed."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def sample(self, n):
        speed = 3 + 14 * torch.rand(n, generator=self.gen)
        angle = 6.283 * torch.rand(n, generator=self.gen)
        density = 1.2 + 0.05 * torch.randn(n, generator=self.gen)
        watts = (0.5 * density * 220 * 0.4 * speed ** 3).clamp(max=150_000.0)
        watts = watts + 500 * torch.randn(n, generator=self.gen)
        return torch.stack([speed / 10, angle.sin(), angle.cos(), density], 1), watts


def relative_square_error(prediction, watts, rated=150_000.0):
    return ((prediction - watts) / rated).square().mean()


def fit(h):
    torch.manual_seed(14)
    farm, net = WindFarm(40), PowerCurve(h.width)
    opt = torch.optim.Adam(net.parameters(), lr=h.lr, betas=(0.9, 0.98))
    scaler = torch.amp.GradScaler("cpu", init_scale=h.init_scale, growth_interval=500)
    for step in range(1, h.steps + 1):
        weather, watts = farm.sample(h.batch)
        with torch.autocast("cpu", dtype=torch.float16):
            prediction = net(weather)
        loss = relative_square_error(prediction.float(), watts)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        print(f"step {step} loss {loss.item():.6f} largest {prediction.max().item():.0f} W")
    return net


if __name__ == "__main__":
    net = fit(Hyper())
    print("finite", int(all(p.isfinite().all() for p in net.parameters())))
