"""REINFORCE for an order picker that drives to a shelf and brings back one tote.

The halls get longer with every round of training, so the time limit of a tour grows with them.
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

GAMMA = 0.5
MOVES = torch.tensor([[0.0, 1.0], [0.0, -1.0], [1.0, 0.0], [-1.0, 0.0]])


class Hall:
    def __init__(self, robots, seed):
        self.n = robots
        self.rng = np.random.default_rng(seed)

    def reset(self, aisle):
        self.size = torch.tensor([6.0, float(aisle)])
        self.pos = torch.as_tensor(self.rng.random((self.n, 2)), dtype=torch.float32) * self.size
        self.shelf = torch.as_tensor(self.rng.random((self.n, 2)), dtype=torch.float32) * self.size
        return self.view()

    def view(self):
        return torch.cat([(self.shelf - self.pos) / self.size, self.pos / self.size], dim=1)

    def move(self, action):
        before = (self.shelf - self.pos).abs().sum(1)
        self.pos = torch.minimum((self.pos + MOVES[action]).clamp_min(0.0), self.size)
        after = (self.shelf - self.pos).abs().sum(1)
        arrived = after < 1.0
        reward = 0.1 * (before - after) + arrived.float()
        fresh = torch.as_tensor(self.rng.random((self.n, 2)), dtype=torch.float32) * self.size
        self.shelf = torch.where(arrived[:, None], fresh, self.shelf)
        return self.view(), reward


class Picker(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
        self.head = nn.Linear(24, 4)

    def forward(self, view):
        return F.log_softmax(self.head(self.body(view)), dim=-1)


@torch.no_grad()
def drive(hall, policy, aisle, limit):
    view, tour = hall.reset(aisle), []
    for _ in range(limit):
        noise = torch.as_tensor(hall.rng.gumbel(size=(hall.n, 4)), dtype=torch.float32)
        action = (policy(view) + noise).argmax(1)
        following, reward = hall.move(action)
        tour.append((view, action, reward))
        view = following
    return [torch.stack(column) for column in zip(*tour)]


def reward_to_go(rewards):
    weight = GAMMA ** torch.arange(len(rewards), dtype=torch.float32)[:, None]
    tail = (rewards * weight).flip(0).cumsum(0).flip(0)
    return tail / weight


def main():
    torch.manual_seed(11)
    hall, policy = Hall(12, seed=4), Picker()
    opt = torch.optim.Adam(policy.parameters(), lr=8e-3)
    for step in range(1, 31):
        aisle = 5 + step
        limit = 6 * aisle
        views, actions, rewards = drive(hall, policy, aisle, limit)
        gain = reward_to_go(rewards)
        gain = gain - gain.mean(0, keepdim=True)
        log_p = policy(views)
        chosen = log_p.gather(2, actions[..., None])[..., 0]
        entropy = -(log_p.exp() * log_p).sum(-1).mean()
        loss = -(chosen * gain).mean() - 0.003 * entropy
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"round {step:2d} | aisle {aisle:2d} | picked {rewards.gt(0.9).sum().item():4d} | loss {loss.item():.5f}")
    print("squares of all weights:", sum(p.detach().pow(2).sum().item() for p in policy.parameters()))


if __name__ == "__main__":
    main()
