"""Growing neural cellular automaton that shall regrow a starfish, with a pool of states and damage.

The figure may drift, so the loss compares it around its own centre of mass.
"""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

CH = 10
SIZE = 20


def starfish():
    y, x = torch.meshgrid(torch.arange(SIZE) - SIZE / 2 + 0.5, torch.arange(SIZE) - SIZE / 2 + 0.5, indexing="ij")
    radius = 4.5 + 2.2 * torch.cos(5 * torch.atan2(y, x))
    alpha = torch.sigmoid(radius - torch.sqrt(x * x + y * y))
    return torch.stack([0.9 * alpha, 0.4 * alpha, 0.3 * alpha, alpha])


def seed_state():
    s = torch.zeros(CH, SIZE, SIZE)
    s[3:, SIZE // 2, SIZE // 2] = 1.0
    return s


class Automaton(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        sobel = torch.tensor([[-1., 0., 1.], [-2., 0., 2.], [-1., 0., 1.]]) / 8
        ident = torch.zeros(3, 3)
        ident[1, 1] = 1
        kernels = torch.stack([ident, sobel, sobel.t()]).repeat(CH, 1, 1).unsqueeze(1)
        self.register_buffer("kernels", kernels)
        self.w1 = nn.Conv2d(3 * CH, hidden, 1)
        self.w2 = nn.Conv2d(hidden, CH, 1)
        nn.init.zeros_(self.w2.weight)
        nn.init.zeros_(self.w2.bias)

    def alive(self, s):
        return F.max_pool2d(s[:, 3:4], 3, stride=1, padding=1) > 0.1

    def forward(self, s, steps, gen):
        for _ in range(steps):
            before = self.alive(s)
            d = self.w2(F.relu(self.w1(F.conv2d(s, self.kernels, padding=1, groups=CH))))
            fire = (torch.rand(s.shape[0], 1, SIZE, SIZE, generator=gen) < 0.5).float()
            s = s + d * fire
            s = s * (before & self.alive(s)).float()
        return s


def centre_of_mass(alpha):
    grid = torch.arange(SIZE, dtype=alpha.dtype) - SIZE / 2 + 0.5
    weight = alpha.clamp(0, 1)
    mass = weight.sum((1, 2))
    cy = (weight.sum(2) * grid).sum(1) / mass
    cx = (weight.sum(1) * grid).sum(1) / mass
    return torch.stack([cy, cx], 1), mass


def figure_loss(state, target):
    rgba = state[:, :4]
    pixel = ((rgba - target) ** 2).mean((1, 2, 3))
    centre, mass = centre_of_mass(rgba[:, 3])
    return pixel + 1e-3 * centre.pow(2).sum(1), mass


def damage(states, gen):
    """Cuts a disc out of each state, somewhere near the middle."""
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    out = states.clone()
    for i in range(len(out)):
        u = torch.rand(3, generator=gen)
        cy, cx = SIZE * (0.25 + 0.5 * u[0]), SIZE * (0.25 + 0.5 * u[1])
        r = SIZE * (0.1 + 0.25 * u[2])
        out[i] *= ((y - cy) ** 2 + (x - cx) ** 2 > r * r).float()
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=50)
    ap.add_argument("--pool", type=int, default=24)
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--damage-from", type=int, default=16)
    ap.add_argument("--seed", type=int, default=2)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    gen = torch.Generator().manual_seed(a.seed + 100)
    target = starfish()
    net = Automaton()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    pool = torch.stack([seed_state() for _ in range(a.pool)])
    for step in range(1, a.steps + 1):
        pick = torch.randperm(a.pool, generator=gen)[:a.batch]
        batch = pool[pick]
        batch[0] = seed_state()
        if step >= a.damage_from:
            batch[-1:] = damage(batch[-1:], gen)
        rollout = int(torch.randint(10, 15, (1,), generator=gen))
        out = net(batch, rollout, gen)
        per_state, mass = figure_loss(out, target)
        loss = per_state.mean()
        opt.zero_grad()
        loss.backward()
        for p in net.parameters():
            p.grad /= p.grad.norm() + 1e-8
        opt.step()
        pool[pick] = out.detach()
        print(f"{step:3d} rollout {rollout} log10 loss {math.log10(loss.item()):.6f}", flush=True)
    print(f"{sum(p.detach().abs().sum() for p in net.parameters()).item():.6f}", flush=True)


if __name__ == "__main__":
    main()
