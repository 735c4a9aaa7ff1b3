"""Behaviour cloning of a throttle controller, Beta policy head (actions live in [0, 1])."""
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.distributions import Beta


@dataclass
class Config:
    obs_dim: int = 6
    hidden: int = 24
    lr: float = 3e-3
    batch: int = 32
    updates: int = 16
    seed: int = 11


class BetaPolicy(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(cfg.obs_dim, cfg.hidden), nn.Tanh())
        self.alpha_head = nn.Linear(cfg.hidden, 1)
        self.beta_head = nn.Linear(cfg.hidden, 1)

    def forward(self, obs):
        h = self.body(obs)
        a = 1.0 + nn.functional.softplus(self.alpha_head(h))
        b = 1.0 + nn.functional.softplus(self.beta_head(h))
        return Beta(a.squeeze(-1), b.squeeze(-1))


def demonstrations(cfg):
    g = torch.Generator().manual_seed(cfg.seed)
    obs = torch.randn(cfg.batch * cfg.updates, cfg.obs_dim, generator=g)
    act = torch.sigmoid(obs[:, 0] - 0.5 * obs[:, 1])
    act[7 * cfg.batch + 3] = 0.0      # driver let go of the pedal
    return obs, act


def main(cfg=Config()):
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    policy = BetaPolicy(cfg)
    optimizer = torch.optim.Adam(policy.parameters(), lr=cfg.lr)
    obs, act = demonstrations(cfg)
    for u in range(cfg.updates):
        sl = slice(u * cfg.batch, (u + 1) * cfg.batch)
        dist = policy(obs[sl])
        nll = -dist.log_prob(act[sl]).mean()
        entropy_bonus = dist.entropy().mean()
        loss = nll - 0.01 * entropy_bonus
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(f"update {u + 1:3d}  nll {nll.item():.5f}  entropy {entropy_bonus.item():.5f}")
    print("weights", sum(p.double().sum().item() for p in policy.parameters()))


if __name__ == "__main__":
    main()
