"""Soft actor-critic on a one-step continuous control toy (thrust should be at its stop).  Own squashed Gaussian."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)


def mlp(i, o, h=32):
    return nn.Sequential(nn.Linear(i, h), nn.ReLU(), nn.Linear(h, o))


class SquashedGaussian(nn.Module):
    LOG_STD = (-5.0, 1.0)

    def __init__(self, obs, act):
        super().__init__()
        self.body = mlp(obs, 2 * act)

    def forward(self, o):
        mu, ls = self.body(o).chunk(2, -1)
        ls = ls.clamp(*self.LOG_STD)
        eps = torch.randn_like(mu)
        u = mu + ls.exp() * eps
        a = torch.tanh(u)
        logp = (-0.5 * eps.pow(2) - ls - 0.5 * math.log(2 * math.pi)).sum(-1)
        logp = logp - torch.log(1 - a.pow(2)).sum(-1)
        return a, logp


class Env:
    def __init__(self):
        self.level = 0

    def reset(self, n):
        self.level += 1                                # curriculum: the start drifts away from the buoy
        return torch.randn(n, 4) * (0.5 + 0.25 * self.level)

    def reward(self, o, a):
        return 6.0 * a.sum(-1) + 0.1 * o.sum(-1) * a[:, 0]


class Agent:
    def __init__(self):
        self.pi, self.q = SquashedGaussian(4, 2), mlp(6, 1)
        self.opt_q = torch.optim.Adam(self.q.parameters(), lr=2e-2)
        self.opt_pi = torch.optim.Adam(self.pi.parameters(), lr=4e-2)
        self.alpha = 0.02

    def critic(self, o, a, r):
        loss = F.mse_loss(self.q(torch.cat([o, a], -1)).squeeze(-1), r)
        self.opt_q.zero_grad()
        loss.backward()
        self.opt_q.step()
        return loss

    def actor(self, o):
        a, logp = self.pi(o)
        q = self.q(torch.cat([o, a], -1)).squeeze(-1)
        loss = (self.alpha * logp - q).mean()
        self.opt_pi.zero_grad()
        loss.backward()
        self.opt_pi.step()
        return loss


env, agent = Env(), Agent()
for it in range(40):
    o = env.reset(64)
    with torch.no_grad():
        a = agent.pi(o)[0] if it > 3 else torch.rand(64, 2) * 2 - 1
    lq = agent.critic(o, a, env.reward(o, a))
    lp = agent.actor(o)
    print(it, repr(lq.item()), repr(lp.item()))
print("checksum", repr(sum(p.detach().double().sum().item() for m in (agent.pi, agent.q) for p in m.parameters())))
