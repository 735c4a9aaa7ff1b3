"""Advantage actor-critic (A2C): which appliance of a mountain refuge may draw from the battery in the next hour."""
import logging
import sys

import torch
import torch.nn as nn

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
log = logging.getLogger("refuge")

APPLIANCES = ("nothing", "radio", "light", "stove")
DRAW = torch.tensor([0.0, 0.5, 1.0, 3.0])
WORTH = torch.tensor([0.0, 0.4, 0.7, 1.6])


class Refuges:
    """Some refuges side by side; each has a battery of sixteen units and a panel on its roof."""

    def __init__(self, count, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.charge = torch.full((count,), 16.0)
        self.hour = torch.zeros(count)
        self.weather = torch.full((count,), 0.95)

    def observe(self):
        day = 2 * torch.pi * self.hour / 24
        return torch.stack([self.charge / 16, torch.sin(day), torch.cos(day), self.weather], 1)

    def possible(self):
        return DRAW[None, :] <= self.charge[:, None]

    def act(self, action):
        sun = torch.clamp(torch.sin(2 * torch.pi * (self.hour - 6) / 24), min=0) * self.weather * 4.4
        self.charge = torch.clamp(self.charge - DRAW[action] + sun, max=16.0)
        guests = 1.0 + 0.3 * torch.randn(len(action), generator=self.g)
        reward = WORTH[action] * guests - 0.3 * (self.charge < 2).float()
        self.hour = (self.hour + 1) % 24
        drift = 0.03 * torch.randn(len(action), generator=self.g) - 0.008
        self.weather = torch.clamp(self.weather + drift, 0.2, 1.0)
        return reward


class ActorCritic(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.actor = nn.Linear(hidden, len(APPLIANCES))
        self.critic = nn.Linear(hidden, 1)
        with torch.no_grad():
            self.actor.weight.mul_(0.1)
            self.actor.bias.copy_(torch.tensor([1.4, 1.2, 0.0, -2.0]))

    def forward(self, state, possible):
        h = self.body(state)
        logits = self.actor(h).masked_fill(~possible, float("-inf"))
        return logits, self.critic(h).squeeze(-1)


def choose(logits, g):
    gumbel = -torch.log(-torch.log(torch.rand(logits.shape, generator=g).clamp(1e-6, 1 - 1e-6)))
    return (logits + gumbel).argmax(-1)


def entropy_of(logits):
    log_prob = torch.log_softmax(logits, -1)
    return -(log_prob.exp() * log_prob).sum(-1)


def main(rounds=44, horizon=5, count=5, gamma=0.95):
    torch.manual_seed(14)
    g = torch.Generator().manual_seed(15)
    env, net = Refuges(count, 16), ActorCritic()
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3, alpha=0.99, eps=1e-5)
    for update in range(1, rounds + 1):
        log_probs, values, rewards, entropies = [], [], [], []
        for _ in range(horizon):
            logits, value = net(env.observe(), env.possible())
            action = choose(logits.detach(), g)
            log_probs.append(torch.log_softmax(logits, -1).gather(1, action[:, None]).squeeze(1))
            entropies.append(entropy_of(logits))
            values.append(value)
            rewards.append(env.act(action))
        with torch.no_grad():
            ahead = net(env.observe(), env.possible())[1]
        returns = []
        for reward in reversed(rewards):
            ahead = reward + gamma * ahead
            returns.insert(0, ahead)
        returns, values = torch.stack(returns), torch.stack(values)
        advantage = (returns - values).detach()
        policy_loss = -(torch.stack(log_probs) * advantage).mean()
        value_loss = (returns - values).square().mean()
        entropy = torch.stack(entropies).mean()
        loss = policy_loss + 0.5 * value_loss - 0.02 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        log.info("update %2d loss %.6f reward %.4f", update, loss.item(), torch.stack(rewards).mean().item())
        optimizer.step()
    log.info("weights %.6f", sum(p.detach().abs().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
