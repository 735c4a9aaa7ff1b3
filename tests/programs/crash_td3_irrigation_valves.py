import random
from collections import deque

import torch
from torch import nn


class DryField:
    """Soil moisture of three beds, one valve each; reward for staying near field capacity."""

    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.moisture = torch.full((3,), 0.3)

    def step(self, valves):
        before = self.moisture.clone()
        sun = 0.05 + 0.1 * torch.rand(3, generator=self.g)
        self.moisture = (self.moisture + 0.2 * (valves + 1) / 2 - sun).clamp(0, 1)
        return before, valves, -((self.moisture - 0.6) ** 2).sum(), self.moisture.clone()


class Agent:
    warm_up, delay, gamma, tau = 10, 3, 0.9, 0.05

    def __init__(self):
        self.actor = nn.Sequential(nn.Linear(3, 24), nn.ReLU(), nn.Linear(24, 3), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
        self.slow = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
        self.slow.load_state_dict(self.critic.state_dict())
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.critic_opt = torch.optim.Adam(self.critic.parameters(), lr=3e-3)

    def q(self, net, state, valves):
        return net(torch.cat([state, valves], dim=1)).squeeze(1)

    def learn(self, it, state, valves, reward, after):
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(valves)).clamp(-0.4, 0.4)
            target = reward + self.gamma * self.q(self.slow, after, (self.actor(after) + noise).clamp(-1, 1))
        critic_loss = nn.functional.mse_loss(self.q(self.critic, state, valves), target)
        policy_turn = it > self.warm_up and it % self.delay == 0
        actor_loss = -self.q(self.critic, state, self.actor(state)).mean() if policy_turn else None

        self.critic_opt.zero_grad()
        critic_loss.backward()
        self.critic_opt.step()
        if policy_turn:
            self.actor_opt.zero_grad()
            actor_loss.backward()
            self.actor_opt.step()
        with torch.no_grad():
            for s, p in zip(self.slow.parameters(), self.critic.parameters()):
                s.lerp_(p, self.tau)
        return critic_loss.item()


def main():
    torch.manual_seed(0)
    rng = random.Random(0)
    field, agent, memory = DryField(9), Agent(), deque(maxlen=500)
    for _ in range(40):
        memory.append(field.step(torch.rand(3) * 2 - 1))
    for it in range(1, 31):
        with torch.no_grad():
            valves = (agent.actor(field.moisture) + 0.3 * torch.randn(3)).clamp(-1, 1)
        memory.append(field.step(valves))
        loss = agent.learn(it, *(torch.stack(c) for c in zip(*rng.sample(memory, 32))))
        print(f"day {it:2d} critic {loss:.5f} moisture {field.moisture.mean():.3f}")
    print("weights", sum(p.abs().sum().item() for p in (*agent.actor.parameters(), *agent.critic.parameters())))


main()
