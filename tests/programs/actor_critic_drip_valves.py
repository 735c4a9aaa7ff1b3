"""Advantage actor-critic that opens the drip valves of a vineyard, one valve per morning.

A season ends with the first heavy rain; it may rain on day one. Some valves are locked for repair,
and soil probes drop out now and then.
"""
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

VALVES = 5


class Vineyard:
    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def reset(self):
        self.water = self.rng.uniform(0.2, 0.5, VALVES)
        self.locked = self.rng.random(VALVES) < 0.3
        self.locked[self.rng.integers(VALVES)] = False
        self.days = int(self.rng.geometric(0.12)) - 1

    def observe(self):
        probe = self.water + self.rng.normal(0, 0.02, VALVES)
        probe[self.rng.random(VALVES) < 0.15] = np.nan
        return torch.tensor(probe, dtype=torch.float32), torch.tensor(~self.locked)

    def water_one(self, valve):
        self.water *= 0.87
        self.water[valve] += 0.3
        return -float(np.abs(self.water - 0.45).sum())


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(2 * VALVES, 24), nn.Tanh(), nn.Linear(24, VALVES))
        self.critic = nn.Sequential(nn.Linear(2 * VALVES, 24), nn.Tanh(), nn.Linear(24, 1))

    @staticmethod
    def encode(probe):
        missing = probe.isnan()
        return torch.cat([torch.nan_to_num(probe, nan=0.35), missing.float()], -1)

    def policy(self, probe, usable):
        return self.actor(self.encode(probe)).masked_fill(~usable, -torch.inf).log_softmax(-1)

    def value(self, probe):
        return self.critic(self.encode(probe)).squeeze(-1)


def season(env, agent):
    env.reset()
    probes, usables, valves, rewards = [], [], [], []
    for _ in range(env.days):
        probe, usable = env.observe()
        with torch.no_grad():
            valve = Categorical(logits=agent.policy(probe, usable)).sample()
        probes.append(probe), usables.append(usable), valves.append(valve)
        rewards.append(env.water_one(int(valve)))
    return probes, usables, valves, rewards


def main():
    torch.manual_seed(5)
    env, agent = Vineyard(14), Agent()
    opt_actor = torch.optim.Adam(agent.actor.parameters(), lr=0.01)
    opt_critic = torch.optim.RMSprop(agent.critic.parameters(), lr=8e-3)
    for number in range(1, 41):
        probes, usables, valves, rewards = season(env, agent)
        if not rewards:
            print(f"season {number:2d}: rain on the first day, nothing to learn")
            continue
        probe, usable, valve = torch.stack(probes), torch.stack(usables), torch.stack(valves)
        returns, tail = torch.zeros(len(rewards)), 0.0
        for i in reversed(range(len(rewards))):
            tail = rewards[i] + 0.6 * tail
            returns[i] = tail
        value = agent.value(probe)
        advantage = (returns - value).detach()
        if len(rewards) > 1:
            advantage = advantage / (advantage.std() + 0.1)
        logp = agent.policy(probe, usable)
        entropy = -(logp.exp() * logp.masked_fill(~usable, 0.0)).sum(-1).mean()
        loss_actor = -(advantage * logp.gather(-1, valve[:, None]).squeeze(-1)).mean() - 0.01 * entropy
        loss_critic = nn.functional.mse_loss(value, returns)
        opt_actor.zero_grad(), loss_actor.backward(), opt_actor.step()
        opt_critic.zero_grad(), loss_critic.backward(), opt_critic.step()
        print(f"season {number:2d}: days {len(rewards):2d} reward {sum(rewards) / len(rewards):+.4f} "
              f"actor {loss_actor.item():+.4f} critic {loss_critic.item():.4f} entropy {entropy.item():.4f}")
    print("weights squared:", sum(p.detach().pow(2).sum().item() for p in agent.parameters()))


if __name__ == "__main__":
    main()
