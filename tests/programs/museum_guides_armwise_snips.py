"""Off-policy learning from logs of a museum's audio guide: which of five introductions is played to a visitor.

Estimator: self-normalised importance weighting arm by arm (so that the frequent arms do not drown the rare ones),
plus an entropy bonus.
"""
from dataclasses import dataclass

import torch
from torch import nn, optim


@dataclass
class Config:
    arms: int = 5
    features: int = 8
    batch: int = 48
    rounds: int = 50
    lr: float = 0.01
    entropy: float = 0.02
    seed: int = 8


class Log:
    """what the old policy played, with its propensities"""

    def __init__(self, cfg):
        self.cfg = cfg
        self.g = torch.Generator().manual_seed(cfg.seed)
        self.taste = torch.randn(cfg.features, cfg.arms, generator=self.g)
        self.mu = torch.tensor([0.34, 0.26, 0.2, 0.12, 0.08])

    def draw(self):
        n = self.cfg.batch
        x = torch.randn(n, self.cfg.features, generator=self.g)
        arm = torch.multinomial(self.mu, n, replacement=True, generator=self.g)
        like = torch.sigmoid((x @ self.taste).gather(1, arm[:, None]).squeeze(1))
        reward = (torch.rand(n, generator=self.g) < like).float()
        return x, arm, self.mu[arm], reward


class Policy(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(cfg.features, 32), nn.ELU(), nn.Linear(32, cfg.arms))

    def forward(self, x):
        return torch.log_softmax(self.net(x), -1)


def armwise_value(logp, arm, mu, reward, arms):
    pi = logp.gather(1, arm[:, None]).squeeze(1).exp()
    w = pi / mu
    zeros = torch.zeros(arms)
    num = zeros.index_add(0, arm, w * reward)
    den = zeros.index_add(0, arm, w)
    ratio = num / den
    share = logp.exp().mean(0)
    return (share * ratio).sum(), w


def train(cfg):
    torch.manual_seed(cfg.seed)
    log, policy = Log(cfg), Policy(cfg)
    opt = optim.RMSprop(policy.parameters(), lr=cfg.lr)
    for r in range(1, cfg.rounds + 1):
        x, arm, mu, reward = log.draw()
        logp = policy(x)
        value, w = armwise_value(logp, arm, mu, reward, cfg.arms)
        ent = -(logp.exp() * logp).sum(-1).mean()
        loss = -value - cfg.entropy * ent
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"round {r:02d} objective {loss.item():.7f} counts {torch.bincount(arm, minlength=cfg.arms).tolist()}",
              flush=True)
    return policy


if __name__ == "__main__":
    p = train(Config())
    print(f"{sum(q.detach().abs().sum().item() for q in p.parameters()):.6f}", flush=True)
