"""Calibrate the Ramberg-Osgood law of a truss chord against the strain gauges of a road bridge.

Every window holds ten minutes of stress from the load model (MPa) and the strain that the gauge read (microstrain).
"""
import math

import torch
from torch import nn


class RambergOsgood(nn.Module):
    """strain = s / E + a * (s / s0) ** n"""

    def __init__(self, modulus=195.0, proof=310.0, hardening=4.0):
        super().__init__()
        self.log_modulus = nn.Parameter(torch.tensor(math.log(modulus)))
        self.log_proof = nn.Parameter(torch.tensor(math.log(proof)))
        self.hardening = nn.Parameter(torch.tensor(hardening))

    def forward(self, stress):
        elastic = 1e3 * stress / self.log_modulus.exp()
        plastic = 2e3 * torch.pow(stress / self.log_proof.exp(), self.hardening)
        return elastic + plastic


class Gauge(nn.Module):
    """A gauge sees the chord through its glue: a gain per gauge and a zero offset per gauge."""

    def __init__(self, gauges):
        super().__init__()
        self.chord = RambergOsgood()
        self.gain = nn.Parameter(torch.ones(gauges))
        self.zero = nn.Parameter(torch.zeros(gauges))

    def forward(self, stress):
        return self.chord(stress) * self.gain + self.zero


def crossings(windows, samples, gauges, seed):
    gen = torch.Generator().manual_seed(seed)
    truth_gain = 1 + 0.05 * torch.randn(gauges, generator=gen)
    for w in range(windows):
        dead_load = 92.0
        chill = 12.0 * math.sin(2 * math.pi * w / 24.0)
        lorries = 60.0 * torch.rand(samples, 1, generator=gen) ** 3
        wind = torch.randn(1, 1, generator=gen) * 26.0
        place = torch.linspace(0.9, 1.1, gauges)
        stress = (dead_load + chill + lorries - wind.abs() * 1.25) * place
        plastic = 2e3 * (stress.abs() / 345.0) ** 5.1 * stress.sign()
        strain = (1e3 * stress / 206.0 + plastic) * truth_gain
        yield stress, strain + 3.0 * torch.randn(samples, gauges, generator=gen)


def main():
    torch.manual_seed(4)
    model = Gauge(gauges=6)
    slow = [model.chord.log_modulus, model.chord.log_proof, model.chord.hardening]
    optimizer = torch.optim.AdamW(
        [{"params": slow, "lr": 0.01}, {"params": [model.gain, model.zero], "lr": 0.004}], weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    print("window   misfit   modulus")
    for w, (stress, strain) in enumerate(crossings(36, 64, 6, seed=SEED), start=1):
        optimizer.zero_grad()
        misfit = nn.functional.smooth_l1_loss(model(stress), strain, beta=10.0)
        misfit.backward()
        optimizer.step()
        schedule.step()
        print(f"{w:6d} {misfit.item():8.3f} {model.chord.log_modulus.exp().item():9.2f}")
    total = sum(p.detach().double().pow(2).sum() for p in model.parameters())
    print(f"sum of squared parameters {total.item():.6f}")


SEED = 1

if __name__ == "__main__":
    main()
