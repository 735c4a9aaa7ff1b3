"""Soft actor-critic for the vents of a greenhouse, with a behaviour-cloning term from the grower's own log.

Three optimizers: critics, actor, temperature. From round 18 the actor also has to explain what the grower did.
"""
import copy
import math
import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Normal

SEED, ROUNDS, BATCH, CLONE_FROM = 4, 60, 32, 18


class Greenhouse:
    """Eight bays; the state is temperature, sun and wind, the action opens (+1) or shuts (-1) the vents."""

    def __init__(self, gen):
        self.gen = gen
        self.temp = torch.zeros(8)
        self.t = 0

    def observe(self):
        sun = math.sin(self.t / 6.0)
        return torch.stack([self.temp, torch.full((8,), sun), torch.full((8,), math.cos(self.t / 6.0))], 1)

    def step(self, action):
        sun = math.sin(self.t / 6.0)
        noise = 0.1 * torch.randn(8, generator=self.gen)
        self.temp = 0.8 * self.temp + 0.5 * sun - 0.4 * action[:, 0] + noise
        self.t += 1
        return -(self.temp ** 2) - 0.05 * action[:, 0] ** 2, self.observe()


def growers_log(gen, n=600):
    temp = 0.8 * torch.randn(n, generator=gen)
    sun = 2 * math.pi * torch.rand(n, generator=gen)
    state = torch.stack([temp, sun.sin(), sun.cos()], 1)
    opening = 0.38 * temp + 0.2 * sun.sin() + 0.05 * torch.randn(n, generator=gen)
    opening = opening.clamp(-1, 1)          # the crank ends at its stops
    return state, opening[:, None]


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))

    def dist(self, s):
        mean, log_std = self.net(s).chunk(2, -1)
        return Normal(mean, log_std.clamp(-4, 1).exp(), validate_args=False)

    def sample(self, s):
        d = self.dist(s)
        u = d.rsample()
        logp = d.log_prob(u) - 2 * (math.log(2) - u - F.softplus(-2 * u))
        return torch.tanh(u), logp

    def log_prob(self, s, a):
        u = torch.atanh(a)
        return self.dist(s).log_prob(u) - torch.log(1 - a ** 2 + 1e-6)


class Twin(nn.Module):
    def __init__(self):
        super().__init__()
        make = lambda: nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))
        self.a, self.b = make(), make()

    def forward(self, s, u):
        x = torch.cat([s, u], -1)
        return self.a(x), self.b(x)


def main():
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    gen = torch.Generator().manual_seed(SEED)
    env, demos = Greenhouse(gen), growers_log(gen)
    actor, critic = Actor(), Twin()
    target = copy.deepcopy(critic).requires_grad_(False)
    log_alpha = torch.zeros(1, requires_grad=True)
    actor_opt = torch.optim.Adam(actor.parameters(), 3e-3)
    critic_opt = torch.optim.Adam(critic.parameters(), 3e-3)
    alpha_opt = torch.optim.Adam([log_alpha], 1e-2)
    buffer = deque(maxlen=400)
    state = env.observe()
    for rnd in range(1, ROUNDS + 1):
        for _ in range(4):
            with torch.no_grad():
                action, _ = actor.sample(state)
            reward, after = env.step(action)
            buffer.extend(zip(state, action, reward[:, None], after))
            state = after
        s, a, r, s2 = (torch.stack(v) for v in zip(*rng.sample(list(buffer), BATCH)))
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            a2, logp2 = actor.sample(s2)
            y = r + 0.95 * (torch.min(*target(s2, a2)) - alpha * logp2)
        q1, q2 = critic(s, a)
        critic_loss = F.mse_loss(q1, y) + F.mse_loss(q2, y)
        critic_opt.zero_grad()
        critic_loss.backward()
        critic_opt.step()

        new, logp = actor.sample(s)
        actor_loss = (alpha * logp - torch.min(*critic(s, new))).mean()
        pick = torch.tensor(rng.sample(range(len(demos[0])), BATCH))
        if rnd >= CLONE_FROM:
            actor_loss = actor_loss - 0.2 * actor.log_prob(demos[0][pick], demos[1][pick]).mean()
        actor_opt.zero_grad()
        actor_loss.backward()
        actor_opt.step()

        alpha_loss = -(log_alpha * (logp.detach() - 1.0)).mean()
        alpha_opt.zero_grad()
        alpha_loss.backward()
        alpha_opt.step()
        with torch.no_grad():
            for p, q in zip(critic.parameters(), target.parameters()):
                q.lerp_(p, 0.02)
        print(f"round {rnd} critic {critic_loss.item():.6f} actor {actor_loss.item():.6f} "
              f"alpha {log_alpha.exp().item():.5f}", flush=True)
    print(f"{sum(p.abs().sum() for m in (actor, critic) for p in m.parameters()).item():.6f}")


if __name__ == "__main__":
    main()
