# Conservative Q-learning from the logs of an ice rink's compressors.
# Action: which of four compressors is shed for the next quarter of an hour. Reward: kWh saved (never negative).
import copy
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    rows: int = 400
    obs: int = 6
    actions: int = 4
    batch: int = 64
    uniform: int = 4          # this many rows of each batch are drawn without regard to priority
    steps: int = 60
    gamma: float = 0.9
    cql: float = 0.1
    power: float = 0.6        # exponent of the priorities
    beta: float = 0.4         # exponent of the importance weights
    polyak: float = 0.05
    lr: float = 3e-3


class QNet(nn.Module):
    """Savings cannot be negative, so the head ends in a rectifier."""

    def __init__(self, cfg):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(cfg.obs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, cfg.actions)
        nn.init.constant_(self.head.bias, 0.5)

    def forward(self, obs):
        return F.relu(self.head(self.trunk(obs)))


class Replay:
    def __init__(self, cfg, gen):
        self.cfg, self.gen = cfg, gen
        n = cfg.rows
        self.obs = torch.randn(n, cfg.obs, generator=gen)
        self.action = torch.randint(cfg.actions, (n,), generator=gen)
        self.next = 0.9 * self.obs + 0.3 * torch.randn(n, cfg.obs, generator=gen)
        self.done = (self.obs[:, 5] < -0.8).float()      # last quarter before closing: nothing is saved any more
        gain = torch.relu(self.obs[torch.arange(n), self.action] + 0.4)
        self.reward = gain * (1 - self.done)
        self.priority = torch.ones(n)

    def sample(self):
        cfg, n = self.cfg, self.cfg.rows
        prob = self.priority / self.priority.sum()
        spots = torch.rand(cfg.batch - cfg.uniform, generator=self.gen)
        ranked = torch.searchsorted(prob.cumsum(0), spots).clamp(max=n - 1)
        spread = torch.randint(n, (cfg.uniform,), generator=self.gen)
        idx = torch.cat([ranked, spread])
        weight = (n * prob[idx]) ** -cfg.beta
        return idx, weight / weight.max()

    def update(self, idx, td):
        self.priority[idx] = td.abs() ** self.cfg.power


def td_target(cfg, target, online, reward, nxt, done):
    with torch.no_grad():
        best = online(nxt).argmax(-1, keepdim=True)
        return reward + cfg.gamma * (1 - done) * target(nxt).gather(-1, best).squeeze(-1)


def train(cfg):
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(17)
    replay = Replay(cfg, gen)
    online = QNet(cfg)
    target = copy.deepcopy(online).requires_grad_(False)
    opt = torch.optim.Adam(online.parameters(), lr=cfg.lr)
    for step in range(1, cfg.steps + 1):
        idx, weight = replay.sample()
        q = online(replay.obs[idx])
        chosen = q.gather(-1, replay.action[idx, None]).squeeze(-1)
        y = td_target(cfg, target, online, replay.reward[idx], replay.next[idx], replay.done[idx])
        td = chosen - y
        bellman = (weight * td ** 2).mean()
        gap = (torch.logsumexp(q, -1) - chosen).mean()
        # the conservative term grows and shrinks with the Bellman error, so that neither drowns the other
        loss = bellman + cfg.cql * bellman.detach().sqrt() * gap
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        replay.update(idx, td.detach())
        with torch.no_grad():
            for a, b in zip(target.parameters(), online.parameters()):
                a.lerp_(b, cfg.polyak)
        print(f"[{step:02d}] loss={loss.item():.6f} bellman={bellman.item():.6f} gap={gap.item():.6f}", flush=True)
    return online


if __name__ == "__main__":
    net = train(Config())
    print(sum(float(p.detach().abs().sum()) for p in net.parameters()), flush=True)
