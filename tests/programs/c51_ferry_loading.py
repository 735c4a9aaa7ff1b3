"""Distributional DQN (C51, double, dueling) that loads cars on a ferry."""
from __future__ import annotations

import collections
import random
from typing import Deque, NamedTuple

import torch
from torch import nn, optim

N_ATOMS, V_MIN, V_MAX = 21, -5.0, 15.0
LANES, LENGTH = 3, 6


class Step(NamedTuple):
    obs: torch.Tensor
    legal: torch.Tensor
    action: int
    reward: float
    next_obs: torch.Tensor
    next_legal: torch.Tensor
    done: bool


class FerryEnv:
    """Vehicles of length 1..3 arrive; choose a lane. A lane that is too full is illegal."""

    def __init__(self, rng: random.Random):
        self.rng = rng

    def reset(self):
        self.free, self.vehicle = [LENGTH] * LANES, self.rng.randint(1, 3)
        return self.view()

    def view(self):
        obs = torch.tensor([f / LENGTH for f in self.free] + [float(self.vehicle == k) for k in (1, 2, 3)])
        return obs, torch.tensor([f >= self.vehicle for f in self.free])

    def step(self, lane: int):
        self.free[lane] -= self.vehicle
        reward = float(self.vehicle) - 0.3 * (max(self.free) - min(self.free))
        self.vehicle = self.rng.randint(1, 3)
        obs, legal = self.view()
        done = not bool(legal.any())
        return obs, legal, reward + (3.0 if sum(self.free) == 0 else 0.0), done


class DuelingC51(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(LANES + 3, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.value = nn.Linear(48, N_ATOMS)
        self.advantage = nn.Linear(48, LANES * N_ATOMS)
        self.register_buffer("atoms", torch.linspace(V_MIN, V_MAX, N_ATOMS))

    def forward(self, obs):
        h = self.body(obs)
        a = self.advantage(h).view(-1, LANES, N_ATOMS)
        return (self.value(h)[:, None] + a - a.mean(1, keepdim=True)).softmax(-1)

    @torch.no_grad()
    def best(self, obs, legal):
        q = (self(obs) * self.atoms).sum(-1).masked_fill(~legal, float("-inf"))
        return q.argmax(-1)


@torch.no_grad()
def project(target, online, batch, gamma=0.98):
    obs, legal = torch.stack([b.next_obs for b in batch]), torch.stack([b.next_legal for b in batch])
    p = target(obs)[torch.arange(len(batch)), online.best(obs, legal)]
    r = torch.tensor([b.reward for b in batch])[:, None]
    alive = torch.tensor([0.0 if b.done else 1.0 for b in batch])[:, None]
    pos = ((r + gamma * alive * target.atoms).clamp(V_MIN, V_MAX) - V_MIN) / (V_MAX - V_MIN) * (N_ATOMS - 1)
    lo, hi = pos.floor().long(), pos.ceil().long()
    m = torch.zeros_like(p)
    m.scatter_add_(1, lo, p * (hi.float() - pos + (lo == hi).float()))
    return m.scatter_add_(1, hi, p * (pos - lo.float()))


def main(seed: int = 8, env_steps: int = 420, warmup: int = 100, every: int = 4, sync: int = 25):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    online, target = DuelingC51(), DuelingC51()
    target.load_state_dict(online.state_dict())
    opt = optim.Adam(online.parameters(), lr=2e-3, eps=1.5e-4)
    memory: Deque[Step] = collections.deque(maxlen=2000)
    env, updates = FerryEnv(rng), 0
    obs, legal = env.reset()
    for t in range(env_steps):
        eps = max(0.05, 1 - t / 300)
        options = legal.nonzero().flatten().tolist()
        action = rng.choice(options) if rng.random() < eps else int(online.best(obs[None], legal[None]))
        nxt, nxt_legal, reward, done = env.step(action)
        memory.append(Step(obs, legal, action, reward, nxt, nxt_legal, done))
        obs, legal = env.reset() if done else (nxt, nxt_legal)
        if t < warmup or t % every:
            continue
        batch = rng.sample(memory, 32)
        p = online(torch.stack([b.obs for b in batch]))[torch.arange(32), [b.action for b in batch]]
        loss = -(project(target, online, batch) * p.clamp(min=1e-6).log()).sum(-1).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        opt.step()
        updates += 1
        if updates % sync == 0:
            target.load_state_dict(online.state_dict())
        print(f"t={t} update={updates} cross-entropy={loss.item():.4f}", flush=True)
    print("final", online.value.weight.norm().item())


if __name__ == "__main__":
    main()
