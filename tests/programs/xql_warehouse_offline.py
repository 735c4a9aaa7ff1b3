"""Offline RL for picking robots, value learning with the Gumbel regression of
"Extreme Q-Learning" (single-file version of my workshop code)."""
import random
from collections import namedtuple

import torch
import torch.nn as nn

SIZE, GAMMA, BETA = 5, 0.95, 1.0
Transition = namedtuple("Transition", "s a r s2 done")


class Warehouse:
    """Robot on a grid, one shelf, one packing desk. Some orders are wholesale."""

    moves = [(0, 1), (0, -1), (1, 0), (-1, 0)]

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.pos, self.loaded, self.t = [self.rng.randrange(SIZE), self.rng.randrange(SIZE)], 0, 0
        return self.obs()

    def obs(self):
        return [self.pos[0] / SIZE, self.pos[1] / SIZE, float(self.loaded), self.t / 60]

    def step(self, a):
        dx, dy = self.moves[a]
        self.pos[0] = min(max(self.pos[0] + dx, 0), SIZE - 1)
        self.pos[1] = min(max(self.pos[1] + dy, 0), SIZE - 1)
        self.t += 1
        reward, done = -0.1, self.t >= 60
        if self.pos == [0, 4] and not self.loaded:
            self.loaded, reward = 1, 0.5
        elif self.pos == [4, 0] and self.loaded:
            pallets = 60 if self.rng.random() < 0.03 else 1
            self.loaded, reward, done = 0, 2.0 * pallets, True
        return self.obs(), reward, done


def collect(n, rng):
    env, data = Warehouse(rng), []
    s = env.reset()
    while len(data) < n:
        a = rng.randrange(4)
        s2, r, done = env.step(a)
        data.append(Transition(s, a, r, s2, float(done)))
        s = env.reset() if done else s2
    return data


def mlp(out):
    return nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, out))


class XQL(nn.Module):
    def __init__(self):
        super().__init__()
        self.value, self.target, self.actor = mlp(1), mlp(1), mlp(4)
        self.target.load_state_dict(self.value.state_dict())
        self.target.requires_grad_(False)

    def sync(self, tau=0.05):
        with torch.no_grad():
            for p, q in zip(self.target.parameters(), self.value.parameters()):
                p.lerp_(q, tau)


def gumbel_loss(advantage):
    z = advantage / BETA
    return (z.exp() - z - 1).mean()


def update(agent, opt, batch):
    s, a, r, s2, d = batch
    with torch.no_grad():
        backup = r + GAMMA * (1 - d) * agent.target(s2).squeeze(-1)
    v = agent.value(s).squeeze(-1)
    value_loss = gumbel_loss(backup - v)
    weight = torch.exp((backup - v.detach()).clamp(max=3.0))
    logp = agent.actor(s).log_softmax(-1).gather(1, a[:, None]).squeeze(1)
    actor_loss = -(weight * logp).mean()
    opt.zero_grad()
    (value_loss + 0.5 * actor_loss).backward()
    opt.step()
    agent.sync()
    return value_loss.item(), actor_loss.item()


def main(seed=3, updates=60, batch_size=64):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    data = collect(6000, rng)
    cols = [torch.tensor(c, dtype=torch.long if i == 1 else torch.float32) for i, c in enumerate(zip(*data))]
    agent = XQL()
    opt = torch.optim.Adam([p for p in agent.parameters() if p.requires_grad], lr=1e-3)
    for it in range(1, updates + 1):
        idx = torch.tensor(rng.sample(range(len(data)), batch_size))
        v_loss, pi_loss = update(agent, opt, [c[idx] for c in cols])
        print(f"update {it:3d}  value {v_loss:.4f}  actor {pi_loss:.4f}", flush=True)
    norm = sum(p.pow(2).sum() for p in agent.value.parameters()).sqrt().item()
    print("final", norm, flush=True)


if __name__ == "__main__":
    main()
