"""Ground vibration from quarry charges, one head per rock. Lookahead with slow steps of fixed relative length."""
import math

import torch
from torch import nn
from torch.optim import Optimizer

ROCKS = ["granite", "basalt", "slate"]


class Triangle:
    """Linear warm-up, then triangles whose height halves; written by hand since the firm has an old torch."""

    def __init__(self, top, warm, period):
        self.top, self.warm, self.period = top, warm, period

    def __call__(self, t):
        if t <= self.warm:
            return self.top * t / self.warm
        cycle, phase = divmod(t - self.warm, self.period)
        return self.top * 0.5 ** cycle * (1 - 0.8 * phase / self.period)


class UnitLookahead(Optimizer):
    """k steps of plain SGD; then the slow weights go a fixed fraction of their own norm towards the fast ones.

    A slow step of a set length keeps large and small layers equally quick."""

    def __init__(self, params, schedule, k=5, reach=0.05):
        super().__init__(params, dict(reach=reach))
        self.schedule, self.k, self.t = schedule, k, 0
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["slow"] = p.detach().clone()

    @torch.no_grad()
    def step(self, closure=None):
        self.t += 1
        lr = self.schedule(self.t)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-lr)
        if self.t % self.k == 0:
            for group in self.param_groups:
                for p in group["params"]:
                    self.pull(p, group["reach"])
        return lr

    def pull(self, p, reach):
        slow = self.state[p]["slow"]
        travel = p - slow
        unit = travel / travel.norm()
        length = torch.minimum(reach * slow.norm().clamp(min=0.1), travel.norm())
        slow.add_(unit * length)
        p.copy_(slow)


class Vibration(nn.Module):
    def __init__(self, features=5, width=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.heads = nn.ModuleDict({rock: nn.Linear(width, 1) for rock in ROCKS})

    def forward(self, x, rock):
        return self.heads[rock](self.body(x)).squeeze(-1)


def diary(steps, gen):
    """Which faces were shot in which week. In weeks 16 to 20 the slate face was under water."""
    for week in range(1, steps + 1):
        shots = {}
        for k, rock in enumerate(ROCKS):
            if rock == "slate" and 16 <= week <= 20:
                continue
            n = int(torch.randint(8, 16, (1,), generator=gen))
            x = torch.randn(n, 5, generator=gen)
            ppv = 0.5 * k + 0.8 * x[:, 0] - 0.6 * torch.log1p(x[:, 1] ** 2) + 0.05 * torch.randn(n, generator=gen)
            shots[rock] = (x, ppv)
        yield week, shots


def main():
    torch.manual_seed(19)
    gen = torch.Generator().manual_seed(20)
    model = Vibration()
    opt = UnitLookahead(model.parameters(), Triangle(top=0.08, warm=8, period=12))
    for week, shots in diary(45, gen):
        losses = {rock: (model(x, rock) - y).pow(2).mean() for rock, (x, y) in shots.items()}
        loss = sum(losses.values()) / len(losses)
        for p in model.parameters():
            p.grad = None
        loss.backward()
        opt.step()
        parts = " ".join(f"{rock} {value.item():.5f}" for rock, value in losses.items())
        print(f"week {week:2d} rmse {math.sqrt(loss.item()):.7f} {parts}", flush=True)
    print(sum(p.detach().abs().sum() for p in model.parameters()).item(), flush=True)


if __name__ == "__main__":
    main()
