"""Density of hourly rime deposits at mast anemometers, given wind, temperature and humidity.

Most hours bring nothing, so the density has an atom at zero and a conditional flow above it.
"""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class ActNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))
        self.log_scale = nn.Parameter(torch.zeros(1))
        self.register_buffer("seen", torch.tensor(False))

    def forward(self, y):
        if not self.seen:
            self.shift.data = y.mean().view(1)
            self.log_scale.data = -y.std().log().view(1)
            self.seen.fill_(True)
        return (y - self.shift) * self.log_scale.exp(), self.log_scale.expand_as(y)


class Bend(nn.Module):
    """z = y + a tanh(b y + c) with a b > -1, all three from the weather."""

    def __init__(self, context):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(context, 16), nn.Tanh(), nn.Linear(16, 3))
        nn.init.zeros_(self.net[2].weight)
        nn.init.zeros_(self.net[2].bias)

    def forward(self, y, weather):
        a, b, c = self.net(weather).unbind(-1)
        b = F.softplus(b) + 0.1
        a = (F.softplus(a + 0.5413) - 1) / b * 0.95
        h = torch.tanh(b * y + c)
        return y + a * h, torch.log1p(a * b * (1 - h * h))


class RimeFlow(nn.Module):
    def __init__(self, context=4):
        super().__init__()
        self.norm = ActNorm()
        self.bends = nn.ModuleList(Bend(context) for _ in range(3))
        self.any_rime = nn.Linear(context, 1)

    def log_prob(self, deposit, weather):
        wet = deposit > 0
        y, total = torch.where(wet, deposit, torch.ones_like(deposit)).log(), 0.0
        jac = -y
        y, ld = self.norm(y)
        jac = jac + ld
        for bend in self.bends:
            y, ld = bend(y, weather)
            jac = jac + ld
        continuous = -0.5 * y * y - 0.5 * math.log(2 * math.pi) + jac
        chance = self.any_rime(weather).squeeze(-1)
        atom = torch.where(wet, torch.full_like(y, -math.inf), F.logsigmoid(-chance))
        above = torch.where(wet, continuous + F.logsigmoid(chance), torch.full_like(y, -math.inf))
        return torch.maximum(atom, above)


def hours(gen, n, polar_night):
    wind = 12 * torch.rand(n, generator=gen)
    temp = -15 * torch.rand(n, generator=gen)
    moist = 0.6 + 0.4 * torch.rand(n, generator=gen)
    weather = torch.stack([wind / 12, temp / 15, moist, torch.ones(n)], 1)
    iced_up = torch.rand(n, generator=gen) < 0.15
    weather[iced_up, 2] = float("nan")         # as the logger writes it
    amount = 1e-3 * torch.exp(wind / 6 + 0.3 * torch.randn(n, generator=gen)) * moist
    dry = torch.rand(n, generator=gen) > (0.0 if polar_night else 0.45)
    return torch.where(dry if not polar_night else torch.ones(n, dtype=torch.bool), torch.zeros(n), amount), weather


def fill(weather):
    known = ~torch.isnan(weather[:, 2])
    humidity = torch.where(known, torch.nan_to_num(weather[:, 2]) - 0.8, torch.zeros(len(weather)))
    return torch.cat([weather[:, :2], humidity[:, None], known.float()[:, None]], 1)


torch.manual_seed(14)
gen = torch.Generator().manual_seed(15)
flow = RimeFlow()
opt = torch.optim.NAdam(flow.parameters(), lr=0.01)
for it in range(42):
    deposit, weather = hours(gen, 64, polar_night=it in (13, 29))
    logp = flow.log_prob(deposit, fill(weather))
    nll = -logp.mean()
    opt.zero_grad()
    nll.backward()
    opt.step()
    print(f"{it:3d}  nll {nll.item(): .4f}  hours with rime {int((deposit > 0).sum()):2d}")
print("parameters squared and summed", sum(p.square().sum().item() for p in flow.parameters()))
