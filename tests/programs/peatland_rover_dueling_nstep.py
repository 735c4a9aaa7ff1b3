# Dueling Q-learning with n-step returns for a little rover that samples a peat bog.
# My weekend project: grid 5x5, some moves are blocked by water, an episode ends on the drilling platform.
import random
from collections import deque, namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE = 5
N_STEP = 3
GAMMA = 0.96
MOVES = [(-1, 0), (1, 0), (0, -1), (0, 1)]
WATER = {(1, 1), (1, 3), (3, 1), (3, 2)}
PLATFORM = (2, 2)

Transition = namedtuple("Transition", "obs action ret next_obs next_legal done")


class Bog:
    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.pos = (0, 0)
        return self.observe()

    def observe(self):
        grid = torch.zeros(SIZE, SIZE)
        grid[self.pos] = 1.0
        return grid.flatten()

    def legal(self):
        """Moves that stay on firm ground.  On the platform there is nothing left to do."""
        mask = torch.zeros(len(MOVES), dtype=torch.bool)
        if self.pos == PLATFORM:
            return mask
        for a, (dr, dc) in enumerate(MOVES):
            r, c = self.pos[0] + dr, self.pos[1] + dc
            mask[a] = 0 <= r < SIZE and 0 <= c < SIZE and (r, c) not in WATER
        return mask

    def step(self, a):
        self.pos = (self.pos[0] + MOVES[a][0], self.pos[1] + MOVES[a][1])
        done = self.pos == PLATFORM
        reward = 1.0 if done else -0.02 + 0.01 * self.rng.random()
        return self.observe(), reward, done


class DuelingNet(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(SIZE * SIZE, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.value = nn.Linear(hidden, 1)
        self.advantage = nn.Linear(hidden, len(MOVES))

    def forward(self, x):
        h = self.trunk(x)
        adv = self.advantage(h)
        return self.value(h) + adv - adv.mean(dim=1, keepdim=True)


class NStepBuffer:
    def __init__(self, capacity, rng):
        self.store = deque(maxlen=capacity)
        self.window = deque()
        self.rng = rng

    def push(self, obs, action, reward, next_obs, next_legal, done):
        self.window.append((obs, action, reward))
        if len(self.window) == N_STEP or done:
            while self.window:
                ret = sum(GAMMA ** i * w[2] for i, w in enumerate(self.window))
                o, a, _ = self.window.popleft()
                self.store.append(Transition(o, a, ret, next_obs, next_legal, float(done)))
                if not done:
                    break

    def sample(self, k):
        batch = [self.store[self.rng.randrange(len(self.store))] for _ in range(k)]
        cols = list(zip(*batch))
        return (torch.stack(cols[0]), torch.tensor(cols[1]), torch.tensor(cols[2], dtype=torch.float32),
                torch.stack(cols[3]), torch.stack(cols[4]), torch.tensor(cols[5]))


def act(net, obs, legal, eps, rng):
    choices = legal.nonzero().flatten().tolist()
    if rng.random() < eps:
        return rng.choice(choices)
    with torch.no_grad():
        q = net(obs[None])[0].masked_fill(~legal, float("-inf"))
    return int(q.argmax())


def bootstrap(online, target, ret, next_obs, next_legal, done):
    with torch.no_grad():
        best = online(next_obs).masked_fill(~next_legal, float("-inf")).argmax(1, keepdim=True)
        future = target(next_obs).masked_fill(~next_legal, float("-inf")).gather(1, best).squeeze(1)
        return ret + GAMMA ** N_STEP * (1.0 - done) * future


def main():
    torch.manual_seed(4)
    rng = random.Random(15)
    env = Bog(rng)
    online, target = DuelingNet(), DuelingNet()
    target.load_state_dict(online.state_dict())
    opt = torch.optim.RMSprop(online.parameters(), lr=5e-4)
    memory = NStepBuffer(400, rng)
    obs, updates, ticks = env.reset(), 0, 0
    while updates < 60:
        ticks += 1
        a = act(online, obs, env.legal(), max(0.2, 1.0 - ticks / 400), rng)
        nxt, reward, done = env.step(a)
        memory.push(obs, a, reward, nxt, env.legal(), done)
        obs = env.reset() if done else nxt
        if len(memory.store) < 24:
            continue
        o, act_idx, ret, no, nl, d = memory.sample(16)
        y = bootstrap(online, target, ret, no, nl, d)
        q = online(o).gather(1, act_idx[:, None]).squeeze(1)
        loss = F.mse_loss(q, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        updates += 1
        if updates % 10 == 0:
            target.load_state_dict(online.state_dict())
        print("update %d td_loss %.9f" % (updates, loss.item()), flush=True)
    print("%.6f" % sum(p.detach().abs().sum().item() for p in online.parameters()), flush=True)


main()
