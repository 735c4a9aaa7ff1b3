# A2C-ish on a corridor robot.  Observations: distance readings -> 1/d "proximity".  VecNormalize-like running stats.
import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical

rng = np.random.default_rng(31)
torch.manual_seed(31)
np.seterr(divide="ignore")


class Corridor:
    """8 robots in a corridor of width 1; action 0/1/2 = left/stay/right"""

    def reset(self):
        self.pos = rng.integers(30, 71, 8) / 100
        return self.observe()

    def observe(self):
        left, right = self.pos, 1.0 - self.pos
        return np.stack([1 / left, 1 / right, left - right], 1).astype(np.float32)

    def step(self, action):
        drift = rng.integers(-6, 7, 8)
        self.pos = np.clip(np.round(self.pos * 100 + drift + 4 * (action - 1)) / 100, 0.0, 1.0)
        return self.observe(), 1.0 - 2 * np.abs(self.pos - 0.5).astype(np.float32)


class RunningNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))
        self.register_buffer("count", torch.tensor(1e-4))

    def forward(self, x):
        if self.training:
            delta, total = x.mean(0) - self.mean, self.count + len(x)
            m2 = self.var * self.count + x.var(0, unbiased=False) * len(x) + delta ** 2 * self.count * len(x) / total
            self.mean += delta * len(x) / total
            self.var = m2 / total
            self.count = total
        return ((x - self.mean) / torch.sqrt(self.var + 1e-8)).clamp(-10, 10)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = RunningNorm(3)
        self.body = nn.Sequential(nn.Linear(3, 32), nn.Tanh())
        self.pi, self.v = nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, obs):
        h = self.body(self.norm(obs))
        return self.pi(h), self.v(h).squeeze(-1)


env, net = Corridor(), Policy()
opt = torch.optim.RMSprop(net.parameters(), lr=7e-4)
obs = env.reset()
for update in range(1, 25):
    logits, value = net(torch.from_numpy(obs))
    greedy = logits.detach().argmax(-1).numpy()
    action = np.where(rng.random(8) < 0.4, rng.integers(0, 3, 8), greedy)
    obs, reward = env.step(action)
    advantage = torch.from_numpy(reward) - value
    logp = torch.log_softmax(logits, -1)[torch.arange(8), torch.from_numpy(action)]
    loss = -(logp * advantage.detach()).mean() + 0.5 * advantage.pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"update {update} reward {reward.mean():.3f} loss {loss.item():.5f}")
print("sum |w| =", sum(p.abs().sum().item() for p in net.parameters()))
