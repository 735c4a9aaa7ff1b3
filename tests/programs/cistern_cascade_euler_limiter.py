"""
Rain cisterns in a cascade: each drains by Torricelli's law into the next one.  A neural inflow model and the
discharge coefficients are fitted through an explicit Euler integrator of our own.
The outflow is limited to what is in the cistern, so no level ever becomes negative.
"""
import argparse
import math

import torch
import torch.nn as nn

G = 9.81


def rain_series(gen, storms, length):
    """A shower at the start of each storm, dry afterwards."""
    rain = torch.zeros(storms, length)
    for s in range(storms):
        wet = int(torch.randint(3, 6, (1,), generator=gen))
        rain[s, :wet] = 0.2 + 0.5 * torch.rand(wet, generator=gen)
    return rain


class Catchment(nn.Module):
    """Share of the rain that arrives at the top cistern; nothing arrives without rain."""

    def __init__(self, hidden=16):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, rain, level):
        share = torch.sigmoid(self.net(torch.stack([rain, level], -1))).squeeze(-1)
        return rain * share


class Outlet(nn.Module):
    def __init__(self, n, guess):
        super().__init__()
        self.log_cd = nn.Parameter(torch.full((n,), math.log(guess)))

    def forward(self, level, dt):
        speed = torch.sqrt(2 * G * level)
        wanted = self.log_cd.exp() * speed
        return torch.minimum(wanted, level / dt)


class Cascade(nn.Module):
    def __init__(self, n=3, guess=0.02):
        super().__init__()
        self.catchment = Catchment()
        self.outlet = Outlet(n, guess)

    def forward(self, start, rain, dt, steps):
        level, path = start, []
        for k in range(steps):
            out = self.outlet(level, dt)
            top = self.catchment(rain[:, k], level[:, 0])
            inflow = torch.cat([top[:, None], out[:, :-1]], 1)
            level = level - dt * out + dt * inflow
            path.append(level)
        return torch.stack(path, 1)


@torch.no_grad()
def survey(gen, storms, length, dt):
    """Gauge readings of the true cascade."""
    truth = Cascade(guess=0.05)
    truth.outlet.log_cd.copy_(torch.tensor([0.058, 0.045, 0.030]).log())
    rain = rain_series(gen, storms, length)
    start = 0.5 + 0.5 * torch.rand(storms, 3, generator=gen)
    readings = truth(start, rain, dt, length)
    return start, rain, (readings + 0.005 * torch.randn(readings.shape, generator=gen)).clamp(min=0)


def horizon_at(step):
    return 5 + step // 2


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--dt", type=float, default=0.5)
    ap.add_argument("--lr", type=float, default=0.03)
    a = ap.parse_args()
    torch.manual_seed(17)
    gen = torch.Generator().manual_seed(5)
    start, rain, seen = survey(gen, 48, horizon_at(a.steps) + 1, a.dt)
    model = Cascade()
    opt = torch.optim.RMSprop(model.parameters(), lr=a.lr / 3)
    for step in range(1, a.steps + 1):
        pick = torch.randint(48, (16,), generator=gen)
        h = horizon_at(step)
        path = model(start[pick], rain[pick], a.dt, h)
        loss = (path - seen[pick, :h]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{step:3d} horizon {h:2d} mse {loss.item():.9f} cd "
              + " ".join(f"{c:.5f}" for c in model.outlet.log_cd.exp().tolist()), flush=True)
    print(f"{sum(p.detach().abs().sum() for p in model.parameters()).item():.6f}", flush=True)


if __name__ == "__main__":
    main()
