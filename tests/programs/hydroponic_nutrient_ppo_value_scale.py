"""PPO (clip) for the dosing pumps of a hydroponic rack, with normalised value targets."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    racks: int = 12
    horizon: int = 16          # hours in one rollout
    rollouts: int = 26
    epochs: int = 2
    minibatches: int = 2
    clip: float = 0.2
    gamma: float = 0.95
    lr: float = 3e-3
    seed: int = 11
    dark_from: int = 224       # flowering: two-thirds of a day of full darkness
    dark_until: int = 240


class NutrientRack:
    """state: conductivity error, acidity error, lamp on, sin/cos of the hour"""

    def __init__(self, cfg, gen):
        self.cfg, self.gen, self.clock = cfg, gen, 0
        self.reset()

    def reset(self):
        self.err = torch.randn(self.cfg.racks, 2, generator=self.gen)
        return self.obs()

    def lamp(self):
        return 0.0 if self.cfg.dark_from <= self.clock < self.cfg.dark_until else 1.0

    def obs(self):
        hour = torch.tensor(self.clock * 2 * torch.pi / 24)
        extra = torch.stack([torch.tensor(self.lamp()), hour.sin(), hour.cos()])
        return torch.cat([self.err, extra.expand(self.cfg.racks, 3)], 1)

    def step(self, action):
        dose = (action.float() - 1.0).unsqueeze(1) * torch.tensor([0.5, -0.3])
        drift = 0.15 * torch.randn(self.cfg.racks, 2, generator=self.gen)
        self.err = 0.95 * self.err + dose + drift
        growth = torch.exp(-self.err.pow(2).sum(1))     # plants only grow in light
        reward = growth * self.lamp()
        self.clock += 1
        return self.obs(), reward


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.policy = nn.Linear(32, 3)
        self.value = nn.Linear(32, 1)

    def forward(self, obs):
        h = self.body(obs)
        return F.log_softmax(self.policy(h), -1), self.value(h).squeeze(-1)


class ValueNormaliser:
    """targets of the critic are brought to mean 0, deviation 1 of the current rollout"""

    def fit(self, returns):
        self.mean, self.std = returns.mean(), returns.std()

    def __call__(self, returns):
        return (returns - self.mean) / self.std


@torch.no_grad()
def collect(env, agent, cfg, gen):
    obs, rows = env.reset(), []
    for _ in range(cfg.horizon):
        logp, _ = agent(obs)
        gumbel = -torch.log(-torch.log(torch.rand(logp.shape, generator=gen).clamp(1e-6, 1 - 1e-6)))
        action = (logp + gumbel).argmax(-1)
        nxt, reward = env.step(action)
        rows.append((obs, action, logp.gather(1, action[:, None]).squeeze(1), reward))
        obs = nxt
    o, a, lp, r = (torch.stack(x) for x in zip(*rows))
    returns, acc = torch.zeros_like(r), torch.zeros(cfg.racks)
    for t in reversed(range(cfg.horizon)):
        acc = r[t] + cfg.gamma * acc
        returns[t] = acc
    return o.flatten(0, 1), a.flatten(), lp.flatten(), returns.flatten(), r.mean().item()


def main(cfg):
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed + 1)
    env, agent, norm = NutrientRack(cfg, gen), Agent(), ValueNormaliser()
    opt = torch.optim.Adam(agent.parameters(), lr=cfg.lr)
    for it in range(1, cfg.rollouts + 1):
        obs, act, old_logp, returns, mean_r = collect(env, agent, cfg, gen)
        norm.fit(returns)
        target = norm(returns)
        with torch.no_grad():
            adv = target - agent(obs)[1]
        losses = []
        for _ in range(cfg.epochs):
            for idx in torch.randperm(len(obs), generator=gen).chunk(cfg.minibatches):
                logp, value = agent(obs[idx])
                lp = logp.gather(1, act[idx][:, None]).squeeze(1)
                ratio = (lp - old_logp[idx]).exp()
                surr = torch.min(ratio * adv[idx], ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * adv[idx])
                entropy = -(logp.exp() * logp).sum(-1).mean()
                loss = -surr.mean() + 0.5 * F.mse_loss(value, target[idx]) - 0.01 * entropy
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                opt.step()
                losses.append(loss.item())
        print(f"rollout {it} reward {mean_r:.6f} loss {losses[0]:.7f}", flush=True)
    print(f"{sum(p.abs().sum().item() for p in agent.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main(Config())
