"""SAC for a two-cable arm, chapter 3 of the thesis. One gradient step per environment step after the random phase."""
import copy
import math
import random
from collections import deque

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

OBS, ACT = 6, 2
RANDOM_PHASE, TOTAL = 64, 110
GAMMA, TAU, BATCH = 0.97, 0.02, 32
LOG_STD = (-6.0, 1.0)


class CableArm:
    def __init__(self, seed, limit=20):
        self.rng, self.limit = np.random.default_rng(seed), limit

    def reset(self):
        self.pos, self.vel, self.t = np.zeros(2), np.zeros(2), 0
        self.goal = self.rng.uniform(-1, 1, 2)
        return self._obs()

    def _obs(self):
        return np.concatenate([self.pos, self.vel, self.goal]).astype(np.float32)

    def step(self, a):
        self.vel = 0.8 * self.vel + 0.3 * a
        self.pos = self.pos + 0.2 * self.vel
        self.t += 1
        dist = float(np.linalg.norm(self.pos - self.goal))
        slack = np.abs(self.pos).max() > 1.5               # a slack cable ends the episode, and is expensive
        reward = -dist - (25.0 if slack else 0.0)
        return self._obs(), reward, slack, slack or self.t >= self.limit


def mlp(i, o, h=48):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU(), nn.Linear(h, o))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(OBS, 2 * ACT)

    def forward(self, s):
        mu, ls = self.net(s).chunk(2, -1)
        std = ls.clamp(*LOG_STD).exp()
        u = mu + std * torch.randn_like(mu)
        logp = (-0.5 * ((u - mu) / std) ** 2 - std.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
        # log(1 - tanh(u)^2), the form that does not saturate
        logp = logp - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)
        return torch.tanh(u), logp


class Twin(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = mlp(OBS + ACT, 1), mlp(OBS + ACT, 1)

    def forward(self, s, a):
        x = torch.cat([s, a], -1)
        return self.a(x).squeeze(-1), self.b(x).squeeze(-1)


def sample(buffer, rnd):
    s, a, r, s2, d = zip(*rnd.sample(list(buffer), BATCH))
    return (torch.from_numpy(np.stack(x)).float() for x in (s, a, r, s2, d))


def main():
    torch.manual_seed(31)
    rnd, explore = random.Random(31), np.random.default_rng(32)
    env = CableArm(33)
    actor, critic = Actor(), Twin()
    target = copy.deepcopy(critic).requires_grad_(False)
    log_alpha = torch.zeros((), requires_grad=True)
    opt_actor = torch.optim.Adam(actor.parameters(), lr=1e-3)
    opt_critic = torch.optim.Adam(critic.parameters(), lr=2e-3)
    opt_alpha = torch.optim.Adam([log_alpha], lr=2e-2)
    buffer, finished, best, ret, updates = deque(maxlen=5000), [], -math.inf, 0.0, 0
    s = env.reset()
    for t in range(1, TOTAL + 1):
        if t <= RANDOM_PHASE:
            a = explore.uniform(-1, 1, ACT).astype(np.float32)
        else:
            with torch.no_grad():
                a = actor(torch.from_numpy(s)[None])[0][0].numpy()
        s2, r, dead, over = env.step(a)
        buffer.append((s, a, np.float32(r), s2, np.float32(dead)))
        s, ret = s2, ret + r
        if over:
            if t > RANDOM_PHASE:
                finished.append(ret)
                best = max(best, ret)
            s, ret = env.reset(), 0.0
        if t <= RANDOM_PHASE:
            continue
        updates += 1
        bs, ba, br, bs2, bd = sample(buffer, rnd)
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            a2, lp2 = actor(bs2)
            y = br + GAMMA * (1 - bd) * (torch.min(*target(bs2, a2)) - alpha * lp2)
        q1, q2 = critic(bs, ba)
        critic_loss = F.mse_loss(q1, y) + F.mse_loss(q2, y)
        opt_critic.zero_grad()
        critic_loss.backward()
        opt_critic.step()
        na, lp = actor(bs)
        actor_loss = (alpha * lp - torch.min(*critic(bs, na))).mean()
        opt_actor.zero_grad()
        actor_loss.backward()
        opt_actor.step()
        alpha_loss = -(log_alpha * (lp.detach() - ACT)).mean()
        opt_alpha.zero_grad()
        alpha_loss.backward()
        opt_alpha.step()
        with torch.no_grad():
            for p, q in zip(target.parameters(), critic.parameters()):
                p.lerp_(q, TAU)
        mean_ret = sum(finished) / len(finished) if finished else math.nan
        print(f"u{updates:03d} critic {critic_loss.item():.5f} actor {actor_loss.item():.5f} "
              f"alpha_loss {alpha_loss.item():.5f} return {mean_ret:.4f} best {best:.4f}", flush=True)


if __name__ == "__main__":
    main()
