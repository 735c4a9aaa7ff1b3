"""Soft actor-critic for the sluice of a mill pond: one gate, four state variables.

Twin critics, Polyak targets, learned temperature.  Data come from a fixed replay of last year's
operation plus what the agent does in a little pond simulator.
"""
import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)


@dataclass
class Args:
    gamma: float = 0.97
    tau: float = 0.1
    lr: float = 3e-3
    alpha_lr: float = 0.12
    batch: int = 64
    steps: int = 60
    seed: int = 21
    target_entropy: float = 2.0      # dim of the action space times two


class Pond:
    """Level, inflow, demand, season."""
    def __init__(self, g):
        self.g = g
        self.s = torch.tensor([0.0, 0.5, 0.4, 0.0])

    def step(self, a):
        level, inflow, demand, season = self.s
        out = 0.5 * (1 + a)
        level = (level + 0.2 * (inflow - out)).clamp(-2, 2)
        inflow = (0.9 * inflow + 0.1 * (0.5 + 0.4 * torch.sin(season)) + 0.05 * torch.randn((), generator=self.g)).clamp(0, 1)
        reward = -(out - demand) ** 2 - 0.3 * level ** 2
        self.s = torch.stack([level, inflow, demand, season + 0.05])
        return reward


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, s, noise):
        mu, log_std = self.net(s).chunk(2, -1)
        std = log_std.clamp(-4, 1).exp()
        u = mu + std * noise
        logp = -0.5 * noise ** 2 - std.log() - 0.9189385
        logp = logp - 2 * (0.6931472 - u - F.softplus(-2 * u))     # change of variables for tanh, stable form
        return torch.tanh(u), logp


def critic():
    return nn.Sequential(nn.Linear(5, 48), nn.ReLU(), nn.Linear(48, 1))


def main(args=Args()):
    torch.manual_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    pond, pi = Pond(g), Policy()
    q1, q2 = critic(), critic()
    t1, t2 = copy.deepcopy(q1), copy.deepcopy(q2)
    log_alpha = nn.Parameter(torch.tensor(-1.5))
    opt_q = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=args.lr * 3)
    opt_pi = torch.optim.Adam(pi.parameters(), lr=args.lr)
    opt_alpha = torch.optim.Adam([log_alpha], lr=args.alpha_lr)
    replay = []

    def collect(n, random_gate=False):
        for _ in range(n):
            s = pond.s
            with torch.no_grad():
                a = torch.rand(1, generator=g) * 2 - 1 if random_gate else pi(s, torch.randn(1, generator=g))[0]
            r = pond.step(a[0])
            replay.append((s, a, r.view(1), pond.s))

    collect(256, random_gate=True)
    for step in range(1, args.steps + 1):
        collect(4)
        pick = torch.randint(len(replay), (args.batch,), generator=g).tolist()
        s, a, r, s2 = (torch.stack(c) for c in zip(*(replay[i] for i in pick)))
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            a2, logp2 = pi(s2, torch.randn(args.batch, 1, generator=g))
            sa2 = torch.cat([s2, a2], 1)
            y = r + args.gamma * (torch.min(t1(sa2), t2(sa2)) - alpha * logp2)
        sa = torch.cat([s, a], 1)
        loss_q = F.mse_loss(q1(sa), y) + F.mse_loss(q2(sa), y)
        opt_q.zero_grad(); loss_q.backward(); opt_q.step()

        new, logp = pi(s, torch.randn(args.batch, 1, generator=g))
        sa = torch.cat([s, new], 1)
        loss_pi = (alpha * logp - torch.min(q1(sa), q2(sa))).mean()
        opt_pi.zero_grad(); loss_pi.backward(); opt_pi.step()

        loss_alpha = -(log_alpha * (logp.detach() + args.target_entropy)).mean()
        opt_alpha.zero_grad(); loss_alpha.backward(); opt_alpha.step()

        with torch.no_grad():
            for t, q in ((t1, q1), (t2, q2)):
                for pt, pq in zip(t.parameters(), q.parameters()):
                    pt.lerp_(pq, args.tau)
        print(f"{step:3d} critic {loss_q.item():.5f} actor {loss_pi.item():+.5f} alpha {log_alpha.exp().item():.5f} H {-logp.mean().item():+.4f}")
    print("weights", f"{sum(p.double().sum().item() for m in (pi, q1, q2) for p in m.parameters()):.5f}")


main()
