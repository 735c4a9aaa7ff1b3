#!/usr/bin/env python
# Policy gradient through a known simulator ("back-propagation through time" of the dynamics):
# a little lander with one swivelling engine. The fuel bill teaches it to shut the engine down.
import math
import torch as th

th.manual_seed(21)
DT, G, HORIZON, BATCH = 0.2, 0.25, 12, 160


class Pilot(th.nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.body = th.nn.Sequential(th.nn.Linear(5, hidden), th.nn.ELU(), th.nn.Linear(hidden, hidden), th.nn.ELU())
        self.throttle = th.nn.Linear(hidden, 1)
        self.swivel = th.nn.Linear(hidden, 1)
        self.throttle.bias.data.fill_(1.2)

    def forward(self, obs):
        z = self.body(obs)
        throttle = th.relu(self.throttle(z)).squeeze(-1)
        angle = 0.5 * math.pi + th.tanh(self.swivel(z)).squeeze(-1)
        return throttle * th.cos(angle), throttle * th.sin(angle)


def reset(gen):
    x = 4 * th.rand(BATCH, generator=gen) - 2
    y = 2 + 2 * th.rand(BATCH, generator=gen)
    vx = 0.3 * th.randn(BATCH, generator=gen)
    vy = -0.2 * th.rand(BATCH, generator=gen)
    return x, y, vx, vy


def episode(pilot, gen, price):
    x, y, vx, vy = reset(gen)
    cost = th.zeros(BATCH)
    for k in range(HORIZON):
        left = th.full((BATCH,), 1 - k / HORIZON)
        ax, ay = pilot(th.stack([x, y, vx, vy, left], dim=1))
        cost = cost + price * DT * th.hypot(ax, ay)
        vx, vy = vx + DT * ax, vy + DT * (ay - G)
        x, y = x + DT * vx, y + DT * vy
    return cost + 0.3 * (x ** 2 + (y - 2) ** 2) + 0.5 * (vx ** 2 + vy ** 2)


def main():
    pilot = Pilot()
    opt = th.optim.RMSprop(pilot.parameters(), lr=2e-4)
    for epoch in range(1, 51):
        gen = th.Generator().manual_seed(4)         # common random numbers: always the same starts
        J = episode(pilot, gen, price=0.6).mean()
        opt.zero_grad()
        J.backward()
        opt.step()
        print('epoch', epoch, 'cost', '%.6f' % J.item())
    print('final', sum(float(p.detach().abs().sum()) for p in pilot.parameters()))


main()
