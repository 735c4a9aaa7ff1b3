"""Actor-critic for greenhouse roof vents (GAE, clipped ratios, inner minibatches).

Actions: close, hold, open a little, open wide. When the wind alarm is on, opening wide is not allowed, and the policy is
renormalised over what is left.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Hyper:
    rounds: int = 14
    envs: int = 16
    horizon: int = 16
    epochs: int = 2
    minibatches: int = 2
    gamma: float = 0.97
    lam: float = 0.92
    clip: float = 0.2
    entropy: float = 0.01
    lr: float = 2e-3


class Greenhouse:
    MOVES = torch.tensor([-0.3, 0.0, 0.15, 0.5])

    def __init__(self, n, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.temp = torch.randn(n, generator=self.gen)
        self.vent = torch.rand(n, generator=self.gen)
        self.hour = 0

    def observe(self):
        n = len(self.temp)
        gust = 0.3 * torch.rand(n, generator=self.gen) + 0.8 * max(0.0, math.sin(self.hour / 60.0) - 0.9) * 8
        allowed = torch.ones(n, 4)
        allowed[gust > 0.55, 3] = 0.0
        obs = torch.stack([self.temp, self.vent, gust, torch.full((n,), math.sin(self.hour / 4))], 1)
        return obs, allowed

    def act(self, action):
        self.hour += 1
        self.vent = (self.vent + self.MOVES[action]).clamp(0, 1)
        sun = math.sin(self.hour / 4)
        self.temp = 0.9 * self.temp + 0.5 * sun - 0.4 * (self.vent - 0.5) + 0.1 * torch.randn(len(self.temp), generator=self.gen)
        return -self.temp.abs()


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.actor = nn.Linear(48, 4)
        self.critic = nn.Linear(48, 1)

    def forward(self, obs, allowed):
        h = self.body(obs)
        p = self.actor(h).softmax(-1) * allowed
        p = p / p.sum(-1, keepdim=True)
        return p, self.critic(h).squeeze(-1)


def collect(env, net, hp, gen):
    rows = []
    with torch.no_grad():
        for _ in range(hp.horizon):
            obs, allowed = env.observe()
            p, v = net(obs, allowed)
            a = torch.multinomial(p, 1, generator=gen).squeeze(1)
            r = env.act(a)
            rows.append((obs, allowed, a, p.gather(1, a[:, None]).squeeze(1).log(), v, r))
        obs, allowed, a, logp, v, r = (torch.stack(c) for c in zip(*rows))
        nxt, adv, run = v[-1], torch.zeros_like(v), torch.zeros(hp.envs)
        for t in reversed(range(hp.horizon)):
            delta = r[t] + hp.gamma * nxt - v[t]
            run = delta + hp.gamma * hp.lam * run
            adv[t], nxt = run, v[t]
    return [c.flatten(0, 1) for c in (obs, allowed, a, logp, adv, adv + v)], r.mean().item()


def objective(net, hp, obs, allowed, a, old, adv, ret):
    p, v = net(obs, allowed)
    logp = p.gather(1, a[:, None]).squeeze(1).log()
    ratio = (logp - old).exp()
    adv = (adv - adv.mean()) / (adv.std() + 1e-6)
    gain = torch.minimum(ratio * adv, ratio.clamp(1 - hp.clip, 1 + hp.clip) * adv).mean()
    entropy = -(p * p.log()).sum(-1).mean()
    return -gain + 0.5 * (v - ret).pow(2).mean() - hp.entropy * entropy


def main():
    hp = Hyper()
    torch.manual_seed(6)
    gen = torch.Generator().manual_seed(7)
    env, net = Greenhouse(hp.envs, 8), ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=hp.lr)
    for rnd in range(1, hp.rounds + 1):
        data, reward = collect(env, net, hp, gen)
        total = 0.0
        for _ in range(hp.epochs):
            for idx in torch.randperm(len(data[0]), generator=gen).chunk(hp.minibatches):
                loss = objective(net, hp, *(c[idx] for c in data))
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                opt.step()
                total += loss.item()
        print(f"round {rnd} reward {reward:.5f} loss {total:.6f} alarms {int((data[1] == 0).sum())}", flush=True)
    print(sum(p.detach().abs().sum().item() for p in net.parameters()), flush=True)


if __name__ == "__main__":
    main()
