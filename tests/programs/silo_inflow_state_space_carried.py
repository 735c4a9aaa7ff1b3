"""Fill level of a grain silo from its conveyor signal: diagonal state space model, truncated BPTT with carried state."""
import torch
from torch import nn

CHUNK, SILOS, STATES = 16, 8, 6


class Conveyor:
    """Endless signal: bursts of inflow and outflow; the level is what has gone in and not yet come out."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.level = torch.zeros(SILOS)
        self.rate = torch.zeros(SILOS)

    def chunk(self):
        rates, levels = [], []
        for _ in range(CHUNK):
            self.rate = 0.6 * self.rate + 0.5 * torch.randn(SILOS, generator=self.g)
            self.level = 0.995 * self.level + 0.1 * self.rate
            rates.append(self.rate)
            levels.append(self.level)
        return torch.stack(rates, 1).unsqueeze(-1), torch.stack(levels, 1)


class DiagonalCell(nn.Module):
    def __init__(self, states, dt=0.1):
        super().__init__()
        self.dt = dt
        self.decay = nn.Parameter(-torch.linspace(0.3, 3.0, states))
        self.inp = nn.Parameter(0.5 + 0.1 * torch.randn(states))

    def discretise(self):
        keep = torch.exp(self.dt * self.decay)
        drive = (keep - 1.0) / self.decay * self.inp
        return keep, drive

    def forward(self, u, state):
        keep, drive = self.discretise()
        out = []
        for k in range(u.shape[1]):
            state = keep * state + drive * u[:, k]
            out.append(state)
        return torch.stack(out, 1), state

    @torch.no_grad()
    def project(self):
        self.decay.clamp_(max=0.0)      # no state may grow


class SiloModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = DiagonalCell(STATES)
        self.read = nn.Sequential(nn.Linear(STATES, 16), nn.SiLU(), nn.Linear(16, 1))
        self.skip = nn.Linear(STATES, 1)

    def forward(self, u, state):
        h, state = self.cell(u, state)
        return (self.read(h) + self.skip(h)).squeeze(-1), state


class Trainer:
    def __init__(self, model, lr=0.008):
        self.model = model
        self.opt = torch.optim.RMSprop(model.parameters(), lr=lr, alpha=0.9)
        self.state = torch.zeros(SILOS, STATES)

    def step(self, u, level):
        pred, state = self.model(u, self.state)
        loss = (pred - level).square().mean()
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(self.model.parameters(), 1.0)
        self.opt.step()
        self.model.cell.project()
        self.state = state.detach()
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(19)
    source, trainer = Conveyor(seed=7), Trainer(SiloModel())
    for n in range(1, 41):
        print("chunk", n, "mse", f"{trainer.step(*source.chunk()):.6f}")
    print("sum of squares of the parameters", sum(p.detach().square().sum().item() for p in trainer.model.parameters()))
