"""Sink rate of a glider from its air data, tracked online.

Online Newton steps; the inverse curvature is kept directly (Woodbury) and forgets exponentially, because
the polar changes with bugs and rain on the wing.
"""
import math

import torch
from torch import nn
from torch.optim import Optimizer

CHANNELS = ["airspeed", "bank", "load", "flap", "airbrake", "density", "one"]


class ForgettingNewton(Optimizer):
    """For linear least squares: `rows` are the regressors of the residuals whose squares made the gradient."""

    def __init__(self, params, lr=1.0, forget=0.75, initial=10.0):
        super().__init__(params, dict(lr=lr, forget=forget, initial=initial))

    @torch.no_grad()
    def step(self, rows):
        for group in self.param_groups:
            lam = group["forget"]
            for p in group["params"]:
                g = p.grad.flatten()
                state = self.state[p]
                if not state:
                    state["inverse"] = group["initial"] * torch.eye(g.numel())
                inv = state["inverse"]
                seen = rows @ inv
                inner = lam * torch.eye(len(rows)) + seen @ rows.T
                inv = (inv - seen.T @ torch.linalg.solve(inner, seen)) / lam
                inv = (inv + inv.T) / 2
                state["inverse"] = inv
                p.sub_(group["lr"] * (inv @ g).view_as(p))


class Flight:
    """A cross-country flight sampled at 1 Hz; the brakes stay locked until the approach, which is not on this tape."""

    def __init__(self, seconds, seed=8):
        self.g = torch.Generator().manual_seed(seed)
        self.seconds = seconds

    def __iter__(self):
        speed = 0.0
        for t in range(self.seconds):
            speed = 0.95 * speed + 0.3 * torch.randn((), generator=self.g).item()
            flap = torch.randint(-2, 3, (12,), generator=self.g) / 2
            bank = 0.5 * torch.randn(12, generator=self.g)
            density = 0.3 * torch.randn(12, generator=self.g)
            air = speed + 0.6 * torch.randn(12, generator=self.g)
            x = torch.stack([air, bank, bank.square(), flap, torch.zeros(12), density,
                             torch.ones(12)], -1)
            wet = 0.15 * (1 - math.cos(t / 25))
            y = 0.8 + (0.25 + wet) * air + 0.4 * bank.square() - 0.1 * flap + 0.1 * density
            yield x, y + 0.05 * torch.randn(12, generator=self.g)


def main():
    torch.manual_seed(0)
    polar = nn.Linear(len(CHANNELS), 1, bias=False)
    optimizer = ForgettingNewton(polar.parameters(), lr=0.8)
    for second, (x, y) in enumerate(Flight(360), start=1):
        optimizer.zero_grad()
        loss = 0.5 * (polar(x).squeeze(-1) - y).square().sum()
        loss.backward()
        optimizer.step(x)
        print(f"{second:4d} s   {loss.item():.6f}", flush=True)
    print(f"{polar.weight.detach().sum().item():.6f}")


if __name__ == "__main__":
    main()
