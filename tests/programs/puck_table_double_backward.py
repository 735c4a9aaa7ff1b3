# Hamiltonian network for pucks on a tilted air table, learned from a tracker (q, p, dq/dt, dp/dt).
# Energy = kinetic(|p|) + potential(q): the table is isotropic in momentum, so only the speed enters.
# The loss compares symplectic gradients, so each step differentiates twice.

import math

import torch
from torch import nn
from tqdm import tqdm

SEED = 31
G_TILT = 0.6
BATCH = 20
EPOCHS = 3


class Kinetic(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.axis = nn.Parameter(torch.tensor([1.1, 0.9]))      # the two axes are calibrated apart
        self.net = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, p):
        scaled = p * self.axis
        speed = scaled.pow(2).sum(-1, keepdim=True).sqrt()
        return self.net(speed)


class Potential(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))

    def forward(self, q):
        return self.net(q)


class HNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinetic = Kinetic()
        self.potential = Potential()

    def energy(self, q, p):
        return self.kinetic(p) + self.potential(q)

    def field(self, q, p):
        q = q.requires_grad_()
        p = p.requires_grad_()
        h = self.energy(q, p).sum()
        dq, dp = torch.autograd.grad(h, (q, p), create_graph=True)
        return dp, -dq


def forces(q):
    # tilt along y, and a soft bumper in the middle
    bump = torch.exp(-4 * (q ** 2).sum(-1, keepdim=True))
    return torch.tensor([0.0, -G_TILT]) + 4.0 * q * bump


def record(gen, shots=24, frames=20, dt=0.05):
    """Leapfrog trajectories. Most pucks are struck; a few are only let go, and lie still in their first frame."""
    rows = []
    for shot in range(shots):
        q = torch.rand(1, 2, generator=gen) * 2 - 1
        angle = 2 * math.pi * torch.rand(1, generator=gen)
        kick = 0.0 if shot in (14, 19) else 0.8
        p = kick * torch.stack([angle.cos(), angle.sin()], -1)
        for _ in range(frames):
            rows.append(torch.cat([q, p, p, forces(q)], -1))
            half = p + 0.5 * dt * forces(q)
            q = q + dt * half
            p = half + 0.5 * dt * forces(q)
    return torch.cat(rows)


def main():
    torch.manual_seed(SEED)
    gen = torch.Generator().manual_seed(SEED)
    rows = record(gen)
    model = HNN()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.995)
    step = 0
    for epoch in range(EPOCHS):
        # shot after shot, as in the film
        for batch in tqdm(rows.split(BATCH), desc=f"epoch {epoch}", disable=True):
            q, p, q_dot, p_dot = batch.split(2, -1)
            dq, dp = model.field(q.clone(), p.clone())
            loss = (dq - q_dot).pow(2).mean() + (dp - p_dot).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            step += 1
            print(f"step {step} loss {loss.item():.9f}", flush=True)
    with torch.no_grad():
        print("weights", torch.nn.utils.parameters_to_vector(model.parameters()).abs().sum().item(), flush=True)


if __name__ == "__main__":
    main()
