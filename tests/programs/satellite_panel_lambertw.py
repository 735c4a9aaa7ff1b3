"""Telemetry fit of the single-diode model for the solar array of a small satellite.

With series resistance the current at a given voltage is explicit in Lambert's W,
    I = IL + I0 - (n Vt / Rs) W(theta),    theta = (Rs I0 / (n Vt)) exp((V + Rs (IL + I0)) / (n Vt)),
and I0 follows the temperature as C T^3 exp(-Eg / kT).
"""
from dataclasses import dataclass

import torch
from torch import nn

BOLTZMANN_EV = 8.617e-5


class LambertW(torch.autograd.Function):
    """Principal branch for theta >= 0, Halley's iteration; W'(theta) = W / (theta (1 + W))."""

    @staticmethod
    def forward(ctx, theta):
        w = torch.log1p(theta)
        w = torch.where(w > 2, w - torch.log1p(w), w)
        for _ in range(8):
            ew = w.exp()
            f = w * ew - theta
            w = w - f / (ew * (w + 1) - (w + 2) * f / (2 * w + 2))
        ctx.save_for_backward(theta, w)
        return w

    @staticmethod
    def backward(ctx, grad):
        theta, w = ctx.saved_tensors
        return grad * (w / (theta * (1 + w)))


@dataclass
class Pass:
    volts: torch.Tensor
    kelvin: torch.Tensor
    sun: torch.Tensor
    amps: torch.Tensor


class SingleDiode(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_c = nn.Parameter(torch.tensor(7.0))
        self.gap = nn.Parameter(torch.tensor(1.10))
        self.log_ideality = nn.Parameter(torch.tensor(0.2))
        self.log_series = nn.Parameter(torch.tensor(-3.5))
        self.light = nn.Parameter(torch.tensor(0.9))
        self.light_per_kelvin = nn.Parameter(torch.tensor(0.0))

    def saturation(self, kelvin):
        boltz = torch.exp(-self.gap / (BOLTZMANN_EV * kelvin))
        return self.log_c.exp() * (kelvin / 300) ** 3 * boltz

    def forward(self, volts, kelvin, sun):
        thermal = self.log_ideality.exp() * BOLTZMANN_EV * kelvin
        series = self.log_series.exp()
        i0 = self.saturation(kelvin)
        il = sun * (self.light + self.light_per_kelvin * (kelvin - 300) / 100)
        theta = series * i0 / thermal * torch.exp((volts + series * (il + i0)) / thermal)
        return il + i0 - thermal / series * LambertW.apply(theta)


def telemetry(passes, seed):
    """Sweeps of 48 points in sunlight. On pass 15 the sweep began as the panel left the shadow, still at 115 K."""
    gen = torch.Generator().manual_seed(seed)
    truth = SingleDiode()
    with torch.no_grad():
        truth.gap.fill_(1.12)
        truth.light.fill_(1.05)
        truth.log_ideality.fill_(0.1)
    for k in range(passes):
        volts = 0.62 * torch.rand(48, generator=gen)
        kelvin = 275 + 70 * torch.rand(48, generator=gen)
        sun = 0.6 + 0.4 * torch.rand(48, generator=gen)
        if k == 14:
            kelvin[:3] = torch.tensor([115.0, 141.0, 172.0])
        with torch.no_grad():
            amps = truth(volts, kelvin, sun) + 0.01 * torch.randn(48, generator=gen)
        yield Pass(volts, kelvin, sun, amps)


def fit(model, data):
    opt = torch.optim.Adam(model.parameters(), lr=8e-3)
    for k, p in enumerate(data, 1):
        opt.zero_grad()
        misfit = nn.functional.smooth_l1_loss(model(p.volts, p.kelvin, p.sun), p.amps, beta=0.05)
        misfit.backward()
        opt.step()
        print(f"pass {k:2d} misfit {misfit.item():.6f}")
    return model


model = fit(SingleDiode(), telemetry(30, seed=2024))
print(f"gap {model.gap.item():.3f} eV")
print("finite", int(all(p.isfinite().all() for p in model.parameters())))
