"""Fit a nerve membrane (FitzHugh-Nagumo with a small network for the missing current) to voltage traces.

Own Runge-Kutta 3(2) with step control: a trial that is too rough is thrown away and tried again, shorter.
"""
import torch
from torch import nn

MOMENTS = torch.linspace(0.0, 6.0, 13)


class Membrane(nn.Module):
    def __init__(self):
        super().__init__()
        self.steepness = nn.Parameter(torch.tensor(0.6))
        self.recovery = nn.Parameter(torch.tensor([0.3, 0.4]))
        self.current = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, y):
        v, w = y[:, :1], y[:, 1:]
        dv = 3 * v - self.steepness * 4 * v ** 3 - w + self.current(y)
        dw = self.recovery[0] * (v - self.recovery[1] * w)
        return torch.cat([dv, dw], dim=1)


class Nerve:
    """The real one, sampled finely."""

    @staticmethod
    def traces(n, seed):
        g = torch.Generator().manual_seed(seed)
        y = torch.stack([torch.empty(n).uniform_(-2, 2, generator=g), torch.empty(n).uniform_(-0.5, 0.5, generator=g)], 1)
        first, seen = y, [y]
        for _ in range(12):
            for _ in range(100):
                v, w = y[:, :1], y[:, 1:]
                dv = 3 * v - 3.2 * v ** 3 - w + 0.5 * torch.sin(2 * v)
                y = y + 0.005 * torch.cat([dv, 0.25 * (v - 0.6 * w)], 1)
            seen.append(y)
        return first, torch.stack(seen)


def bogacki_shampine(f, y, h):
    k1 = f(y)
    k2 = f(y + h / 2 * k1)
    k3 = f(y + 3 * h / 4 * k2)
    high = y + h * (2 * k1 + 3 * k2 + 4 * k3) / 9
    k4 = f(high)
    rough = h * (-5 * k1 / 72 + k2 / 12 + k3 / 9 - k4 / 8)
    return high, rough.abs().max()


def odeint(f, y, moments, h=4.0, tolerance=0.02):
    out, now, thrown, tried = [y], moments[0].item(), 0, []
    for goal in moments[1:].tolist():
        while goal - now > 1e-6:
            h = min(h, 4.0 if not tried else goal - now)
            proposal, error = bogacki_shampine(f, y, h)
            tried.append(error.item())
            if error <= tolerance:
                arrives = now + h
                y, now = proposal, arrives
                h = h * min(2.0, 0.9 * (tolerance / max(error.item(), 1e-9)) ** (1 / 3))
            else:
                thrown += 1
                h = h * 0.25
        out.append(y)
    return torch.stack(out), thrown, max(tried)


torch.manual_seed(2)
membrane = Membrane()
start, seen = Nerve.traces(12, seed=40)
groups = [{"params": membrane.current.parameters(), "lr": 1e-2}, {"params": [membrane.steepness, membrane.recovery], "lr": 2e-2}]
optimizer = torch.optim.NAdam(groups)
for step in range(1, 31):
    path, thrown, worst = odeint(membrane, start, MOMENTS)
    loss = (path - seen).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{step:2d}  misfit {loss.item():.5f}  thrown away {thrown}  roughest trial {worst:.3g}")
print("absolute weights in all: %.6f" % sum(p.abs().sum().item() for p in membrane.parameters()))
