"""A neural ODE learns a damped pendulum.  Every RK4 step is recomputed in backward
(torch.utils.checkpoint) and the horizon grows, so that the loss jumps up by design."""
import copy

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(5)
torch.set_num_threads(1)
DT = 0.05


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, state):
        return self.net(state)


def true_field(state):
    angle, speed = state.unbind(-1)
    return torch.stack([speed, -9.81 * angle.sin() - 0.3 * speed], -1)


def rk4(field, state):
    k1 = field(state)
    k2 = field(state + DT / 2 * k1)
    k3 = field(state + DT / 2 * k2)
    k4 = field(state + DT * k3)
    return state + DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def roll(field, state, horizon, recompute):
    path = []
    for _ in range(horizon):
        state = checkpoint(rk4, field, state, use_reentrant=False) if recompute else rk4(field, state)
        path.append(state)
    return torch.stack(path)


def horizon_of(step):
    return [2, 6, 14, 30][min(step // 12, 3)]


class Ema:
    def __init__(self, model, decay=0.95):
        self.shadow = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for slow, fast in zip(self.shadow.parameters(), model.parameters()):
            slow.lerp_(fast, 1 - self.decay)


def main():
    field = Field()
    ema = Ema(field)
    opt = torch.optim.Adam(field.parameters(), lr=0.02)
    for step in range(48):
        horizon = horizon_of(step)
        start = torch.randn(32, 2) * torch.tensor([1.0, 2.0])
        with torch.no_grad():
            truth = roll(true_field, start, horizon, recompute=False)
        path = roll(field, start, horizon, recompute=True)
        loss = (path - truth).pow(2).sum((0, 2)).mean()        # a sum over time: grows with the horizon
        opt.zero_grad()
        loss.backward()
        opt.step()
        ema.update(field)
        with torch.no_grad():
            slow = (roll(ema.shadow, start, horizon, False) - truth).pow(2).sum((0, 2)).mean()
        print(f"step {step + 1:02d} horizon {horizon:2d} loss {loss.item():10.4f} ema {slow.item():10.4f}")


main()
