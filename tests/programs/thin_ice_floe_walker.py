"""Advantage actor-critic: a fox crosses a lake. The ice breaks behind it, so it must not go back to where it was."""

import torch
from torch import nn, optim
from torch.distributions import Categorical

SIZE, HORIZON, LANES, GAMMA = 9, 12, 2, 0.97
MOVES = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]])
MEMORY = 4  # a hole freezes over again after so many moves


class Lake:
    def __init__(self, lanes, generator):
        self.lanes, self.g = lanes, generator
        self.reset()

    def reset(self):
        self.at = torch.stack(
            [torch.full((self.lanes,), SIZE - 1), torch.randint(1, SIZE - 1, (self.lanes,), generator=self.g)], 1
        )
        self.broken = torch.zeros(self.lanes, SIZE, SIZE, dtype=torch.long)
        self.goal = torch.randint(0, SIZE, (self.lanes,), generator=self.g)
        self._break()

    def _break(self):
        self.broken = (self.broken - 1).clamp(min=0)
        self.broken[torch.arange(self.lanes), self.at[:, 0], self.at[:, 1]] = MEMORY

    def observation(self):
        here = torch.zeros(self.lanes, SIZE, SIZE)
        here[torch.arange(self.lanes), self.at[:, 0], self.at[:, 1]] = 1
        den = torch.zeros(self.lanes, SIZE, SIZE)
        den[torch.arange(self.lanes), 0, self.goal] = 1
        return torch.stack([here, self.broken.float() / MEMORY, den], 1)

    def legal(self):
        to = self.at[:, None] + MOVES[None]
        inside = ((to >= 0) & (to < SIZE)).all(-1)
        to = to.clamp(0, SIZE - 1)
        holes = self.broken[torch.arange(self.lanes)[:, None], to[..., 0], to[..., 1]] > 0
        return inside & ~holes

    def step(self, action):
        before = self.distance()
        self.at = self.at + MOVES[action]
        self._break()
        after = self.distance()
        done = after == 0
        reward = 0.1 * (before - after).float() + done.float()
        for lane in torch.nonzero(done).flatten().tolist():
            self.at[lane] = torch.tensor([SIZE - 1, int(torch.randint(1, SIZE - 1, (1,), generator=self.g))])
            self.broken[lane] = 0
        return reward, done

    def distance(self):
        return self.at[:, 0] + (self.at[:, 1] - self.goal).abs()


class FoxNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(12 * SIZE * SIZE, 64), nn.Tanh()
        )
        self.actor, self.critic = nn.Linear(64, 4), nn.Linear(64, 1)

    def forward(self, seen):
        h = self.trunk(seen)
        return self.actor(h), self.critic(h).squeeze(-1)


def choose(net, lake):
    logits, value = net(lake.observation())
    policy = Categorical(logits=logits.masked_fill(~lake.legal(), float("-inf")))
    action = policy.sample()
    return action, policy.log_prob(action), policy.probs, value


def rollout(net, lake):
    lake.reset()
    logps, probs, values, rewards, dones = [], [], [], [], []
    for _ in range(HORIZON):
        action, logp, p, value = choose(net, lake)
        reward, done = lake.step(action)
        logps.append(logp), probs.append(p), values.append(value), rewards.append(reward), dones.append(done.float())
    returns, running = [], torch.zeros(lake.lanes)
    for reward, done in zip(reversed(rewards), reversed(dones), strict=False):
        running = reward + GAMMA * running * (1 - done)
        returns.insert(0, running)
    return torch.stack(logps), torch.stack(probs), torch.stack(values), torch.stack(returns)


def train(updates=60):
    torch.manual_seed(21)
    net = FoxNet()
    optimizer = optim.RMSprop(net.parameters(), lr=2e-3)
    lake = Lake(LANES, torch.Generator().manual_seed(1))
    for update in range(1, updates + 1):
        logp, probs, value, target = rollout(net, lake)
        advantage = (target - value).detach()
        entropy = torch.special.entr(probs.clamp(min=1e-8)).sum(-1).mean()
        loss = -(logp * advantage).mean() + 0.5 * (target - value).pow(2).mean() - 0.02 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        print(f"update {update:2d} return {target[0].mean().item():+.4f} loss {loss.item():+.6f}", flush=True)
    print(sum(p.abs().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    train()
