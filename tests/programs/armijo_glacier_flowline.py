"""Inverse problem of a valley glacier: find the surface mass balance and the ice softness that explain a
measured profile. Forward model: shallow-ice flowline, explicit in time. The time step is only stable for
moderate softness, so the optimizer backs off whenever a trial glacier blows up.
"""
import numpy as np
import torch
from torch.optim import Optimizer

CELLS, DX, DT, YEARS = 30, 1.0, 0.02, 4.0


class ArmijoDescent(Optimizer):
    """Steepest descent; the step is doubled before each search and halved until the Armijo test holds."""

    def __init__(self, params, start=1.0, c1=1e-4):
        super().__init__(params, {"c1": c1})
        self.length = start
        self.trials = []

    def step(self, closure):
        with torch.enable_grad():
            f0 = closure()
        (group,) = self.param_groups
        params = group["params"]
        keep = [p.detach().clone() for p in params]
        grads = [p.grad.clone() for p in params]
        slope = float(sum((g * g).sum() for g in grads))
        self.length *= 64.0
        self.trials = []
        with torch.no_grad():
            while True:
                for p, k, g in zip(params, keep, grads):
                    p.copy_(k - self.length * g)
                f = float(closure(backward=False))
                self.trials.append(f)
                if f <= float(f0) - group["c1"] * self.length * slope or len(self.trials) == 40:
                    break
                self.length /= 2.0
        return f0


class Flowline(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.log_softness = torch.nn.Parameter(torch.tensor(-1.5))
        self.balance = torch.nn.Parameter(torch.tensor([0.2, -0.1]))      # at the head, gradient along x

    def forward(self):
        x = torch.arange(CELLS) * DX
        bed = 3.0 - 0.1 * x
        thick = torch.zeros(CELLS)
        melt = self.balance[0] + self.balance[1] * x / 10
        for _ in range(int(YEARS / DT)):
            surface = bed + thick
            grad = (surface[1:] - surface[:-1]) / DX
            mid = (thick[1:] + thick[:-1]) / 2
            flux = -torch.exp(self.log_softness) * mid ** 5 * grad.abs() ** 2 * grad
            div = torch.nn.functional.pad(flux, (0, 1)) - torch.nn.functional.pad(flux, (1, 0))
            thick = torch.relu(thick + DT * (melt - div / DX))
        return thick


def measured():
    with torch.no_grad():
        m = Flowline()
        m.log_softness.fill_(1.0)
        m.balance.copy_(torch.tensor([0.6, -0.35]))
        return m()


if __name__ == "__main__":
    torch.manual_seed(0)
    target = measured() + 0.01 * torch.randn(CELLS)
    glacier = Flowline()
    optim = ArmijoDescent(glacier.parameters())

    def closure(backward=True):
        misfit = ((glacier() - target) ** 2).mean()
        if backward:
            optim.zero_grad()
            misfit.backward()
        return misfit

    for k in range(1, 16):
        f = optim.step(closure)
        bad = int(np.sum(~np.isfinite(optim.trials)))
        print(f"{k:2d} misfit {f.item():.7f} step {optim.length:.3g} trials {len(optim.trials)} blown up {bad}")
    print("final", sum(p.detach().abs().sum().item() for p in glacier.parameters()))
