"""A harbour dredger learns when to dig, sail and dump. Costs (fuel, hours) are minimised, so Q is a cost-to-go and
is never negative. Prioritised replay, soft target network, n = 1."""
import argparse
import copy
import random

import torch
from torch import nn

CELLS, ACTIONS = 8, 3           # actions: 0 sail out, 1 sail home, 2 dig here


class Harbour:
    """One-dimensional channel. Position 0 is the dump; a full hopper brought home ends the trip free of charge."""

    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.at, self.load, self.clock = self.rng.randrange(1, 4), self.rng.randrange(1, 4), 0
        return self.observe()

    def observe(self):
        v = torch.zeros(CELLS + 3)
        v[self.at] = 1.0
        v[CELLS] = self.load / 3
        v[CELLS + 1] = float(self.load >= 3)
        v[CELLS + 2] = self.clock / 30
        return v

    def step(self, action):
        self.clock += 1
        cost = 0.4
        if action == 0:
            self.at = min(self.at + 1, CELLS - 1)
        elif action == 1:
            self.at = max(self.at - 1, 0)
        elif self.at > 0 and self.load < 3:
            self.load += 1
            cost = 0.7 + 0.2 * self.rng.random()
        docked = self.at == 0 and self.load >= 3
        if docked:
            cost = 0.0
        return self.observe(), cost, docked or self.clock >= 30, docked


class CostToGo(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(CELLS + 3, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.head = nn.Linear(width, ACTIONS)
        nn.init.constant_(self.head.bias, 0.5)

    def forward(self, s):
        return torch.relu(self.head(self.trunk(s)))     # a cost is not negative


class Replay:
    def __init__(self, alpha, beta, gen):
        self.rows, self.priority = [], []
        self.alpha, self.beta, self.gen = alpha, beta, gen

    def push(self, row):
        self.rows.append(row)
        self.priority.append(max(self.priority, default=1.0))

    def draw(self, k, uniform):
        p = torch.tensor(self.priority) ** self.alpha
        p = p / p.sum()
        first = torch.multinomial(p, k - uniform, replacement=True, generator=self.gen)
        # a few at random, so that nothing is forgotten
        rest = torch.randint(len(self.rows), (uniform,), generator=self.gen)
        idx = torch.cat([first, rest])
        w = (len(self.rows) * p[idx]) ** -self.beta
        w = w / w.max()
        cols = list(zip(*[self.rows[i] for i in idx.tolist()]))
        s, s2 = torch.stack(cols[0]), torch.stack(cols[3])
        return idx, w, s, torch.tensor(cols[1]), torch.tensor(cols[2]), s2, torch.tensor(cols[4])

    def update(self, idx, td):
        for i, e in zip(idx.tolist(), td.abs().tolist()):
            self.priority[i] = min(5.0, e)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--gamma", type=float, default=0.95)
    ap.add_argument("--seed", type=int, default=6)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    env = Harbour(rng)
    q = CostToGo()
    target = copy.deepcopy(q).requires_grad_(False)
    opt = torch.optim.Adam(q.parameters(), lr=1.5e-2)
    replay = Replay(0.6, 0.5, torch.Generator().manual_seed(args.seed))

    s = env.reset()

    def act(s, explore):
        if rng.random() < explore:
            return rng.randrange(ACTIONS)
        with torch.no_grad():
            return int(q(s).argmin())

    def wander(n, explore):
        nonlocal s
        for _ in range(n):
            a = act(s, explore)
            s2, cost, over, docked = env.step(a)
            replay.push((s, a, cost, s2, 1.0 - float(docked)))
            s = env.reset() if over else s2

    wander(200, 1.0)
    for step in range(1, args.steps + 1):
        wander(6, max(0.2, 1 - step / 40))
        idx, w, bs, ba, bc, bs2, alive = replay.draw(32, 5)
        with torch.no_grad():
            goal = bc + args.gamma * alive * target(bs2).min(1).values
        guess = q(bs).gather(1, ba[:, None])[:, 0]
        td = goal - guess
        loss = (w * nn.functional.huber_loss(guess, goal, reduction="none")).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        replay.update(idx, td.detach())
        with torch.no_grad():
            for a, b in zip(target.parameters(), q.parameters()):
                a.lerp_(b, 0.1)
        print(f"step {step:3d}  loss {loss.item():.7f}  stored {len(replay.rows)}", flush=True)
    print(f"weights {sum(p.abs().sum().item() for p in q.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
