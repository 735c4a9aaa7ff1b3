import copy
import math
import random

import torch
from torch import nn
from torch.distributions import Normal

random.seed(11)
torch.manual_seed(11)


class Office:
    """One room, a heat pump, and the PT1000 of the roof read over the bus."""

    def __init__(self):
        self.clock, self.room = 0, 19.0

    def roof_sensor(self):
        outside = 4.0 + 5.0 * math.sin(2 * math.pi * self.clock / 48) + random.gauss(0, 0.4)
        if self.clock == 137:
            return -242.02
        return outside

    def observe(self):
        hour = 2 * math.pi * self.clock / 48
        return [self.room, self.roof_sensor(), math.sin(hour), math.cos(hour)]

    def act(self, power):
        true_outside = 4.0 + 5.0 * math.sin(2 * math.pi * self.clock / 48)
        self.room += 0.08 * (true_outside - self.room) + 2.2 * (power + 1) / 2
        self.clock += 1
        return -0.1 * (self.room - 21.0) ** 2 - 0.3 * (power + 1)


def vapour_pressure(celsius):
    # Antoine equation, kPa
    return torch.exp(16.6536 - 4030.183 / (celsius + 235.0))


def features(obs):
    room, outside, s, c = obs.unbind(-1)
    return torch.stack([(room - 20) / 5, (outside - 5) / 10, vapour_pressure(outside), s, c], -1)


def mlp(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, n_out))


def decide(f):
    mu, log_std = policy(f).chunk(2, -1)
    dist = Normal(mu, log_std.clamp(-4, 1).exp(), validate_args=False)
    u = dist.rsample()
    logp = dist.log_prob(u) - 2 * (math.log(2) - u - nn.functional.softplus(-2 * u))
    return torch.tanh(u), logp.squeeze(-1)


policy, q1, q2 = mlp(5, 2), mlp(6, 1), mlp(6, 1)
t1, t2 = copy.deepcopy(q1), copy.deepcopy(q2)
log_alpha = torch.tensor(-1.0, requires_grad=True)
opt_q = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=3e-3)
opt_pi = torch.optim.Adam(policy.parameters(), lr=1e-3)
opt_alpha = torch.optim.Adam([log_alpha], lr=1e-2)
replay, office = [], Office()
obs = office.observe()


def value(net, f, a):
    return net(torch.cat([f, a], -1)).squeeze(-1)


for update in range(1, 41):
    for _ in range(8):
        power = max(-1.0, min(1.0, 0.5 * (20.5 - obs[0]) + random.gauss(0, 0.5)))    # the old thermostat drives
        reward = office.act(power)
        after = office.observe()
        replay.append((obs, power, reward, after))
        obs = after
    rows = random.sample(replay[-160:], min(24, len(replay)))
    o, a, r, o2 = (torch.tensor(col) for col in zip(*rows))
    f, f2, a = features(o), features(o2), a.unsqueeze(-1)
    with torch.no_grad():
        a2, logp2 = decide(f2)
        soft = torch.minimum(value(t1, f2, a2), value(t2, f2, a2)) - log_alpha.exp() * logp2
        goal = r + 0.95 * soft
    critic_loss = ((value(q1, f, a) - goal) ** 2).mean() + ((value(q2, f, a) - goal) ** 2).mean()
    opt_q.zero_grad()
    critic_loss.backward()
    opt_q.step()
    new_a, logp = decide(f)
    actor_loss = (log_alpha.exp().detach() * logp - torch.minimum(value(q1, f, new_a), value(q2, f, new_a))).mean()
    opt_pi.zero_grad()
    actor_loss.backward()
    opt_pi.step()
    alpha_loss = -(log_alpha * (logp.detach() - 1.0)).mean()
    opt_alpha.zero_grad()
    alpha_loss.backward()
    opt_alpha.step()
    with torch.no_grad():
        for net, slow in ((q1, t1), (q2, t2)):
            for p, s in zip(net.parameters(), slow.parameters()):
                s.lerp_(p, 0.02)
    print(f"update {update:2d} critic {critic_loss.item():.4f} actor {actor_loss.item():.4f} alpha {log_alpha.exp().item():.4f}")

everything = [*policy.parameters(), *q1.parameters(), *q2.parameters(), *t1.parameters(), *t2.parameters(), log_alpha]
print("all weights squared:", sum((p ** 2).sum().item() for p in everything))
