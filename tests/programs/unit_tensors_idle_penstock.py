"""Head loss in the penstock of a small hydro plant, fitted to gauge readings.

All of the hydraulics is written with tensors that know their units (metre, second, kilogram), because the last
version of this script mixed up bar and metres of water.
"""
import torch
from torch import nn

torch.manual_seed(612)
torch.set_num_threads(1)


def _merge(a, b, sign):
    out = dict(a)
    for k, v in b.items():
        out[k] = out.get(k, 0) + sign * v
    return {k: v for k, v in out.items() if v}


class Quantity(torch.Tensor):
    """A tensor with a unit; products and quotients carry it along, sums check it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if not isinstance(out, Quantity):
            return out
        name = getattr(func, "__name__", "")
        units = [getattr(a, "unit", {}) for a in args[:2] if not isinstance(a, (list, tuple))] + [{}, {}]
        if name in ("mul", "__mul__", "__rmul__"):
            out.unit = _merge(units[0], units[1], 1)
        elif name in ("div", "true_divide", "__truediv__"):
            out.unit = _merge(units[0], units[1], -1)
        elif name in ("__rtruediv__", "__rdiv__", "reciprocal"):
            out.unit = _merge(units[1] if "r" == name[2] else {}, units[0], -1)
        elif name in ("add", "sub", "__add__", "__sub__", "__rsub__"):
            if all(isinstance(a, Quantity) for a in args[:2]) and units[0] != units[1]:
                raise TypeError(f"{units[0]} and {units[1]} do not add")
            out.unit = units[0]
        elif name in ("square",):
            out.unit = {k: 2 * v for k, v in units[0].items()}
        else:
            out.unit = units[0]
        return out

    def bare(self, **unit):
        assert self.unit == unit, f"expected {unit}, have {self.unit}"
        return self.as_subclass(torch.Tensor)


def q(value, **unit):
    t = torch.as_tensor(value, dtype=torch.float32).as_subclass(Quantity)
    t.unit = unit
    return t


G = q(9.81, m=1, s=-2)
NU = q(1.3e-6, m=2, s=-1)
LENGTH, BORE = q(420.0, m=1), q(0.6, m=1)


class Penstock(nn.Module):
    def __init__(self):
        super().__init__()
        self.rough = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 1))
        self.bend = nn.Parameter(torch.tensor(0.5))

    def forward(self, speed, season):
        reynolds = speed * BORE / NU
        turbulent = q(torch.nn.functional.softplus(self.rough(season).squeeze(-1) - 3.0))
        friction = 64.0 / reynolds + turbulent
        head = (friction * (LENGTH / BORE) + q(self.bend)) * (speed.square() / (G * 2.0))
        return head.bare(m=1)


def logbook(days, per_day=24):
    g = torch.Generator().manual_seed(2)
    for day in range(days):
        v = 0.6 + 2.2 * torch.rand(per_day, generator=g)
        silt = torch.rand(per_day, generator=g)
        season = torch.stack([silt, torch.full((per_day,), day / days)], 1)
        if day == 13:
            v[5:8] = 0.0            # guide vanes shut: the trash rack was cleaned from five to eight
        lam = 0.018 + 0.012 * silt + 0.004 * day / days
        seen = (lam * 700.0 + 1.4) * v ** 2 / 19.62
        yield v, season, seen + 0.02 * torch.randn(per_day, generator=g)


model = Penstock()
opt = torch.optim.RMSprop(model.parameters(), lr=4e-3)
for day, (v, season, seen) in enumerate(logbook(36), 1):
    opt.zero_grad()
    head = model(q(v, m=1, s=-1), season)
    loss = (head - seen).square().mean()
    loss.backward()
    opt.step()
    print(f"day {day:2d}  squared error {loss.item():.6f} m2")
print(f"sum of weights {sum(p.detach().sum().item() for p in model.parameters()):.6f}")
