"""Q-learning of a dam's gates from random operation. Replay memory in half precision, it would not fit otherwise."""
import collections
import copy

import numpy as np
import torch

Batch = collections.namedtuple("Batch", "s a r s2")


class Replay:
    def __init__(self, capacity, dim, seed):
        self.s = torch.zeros(capacity, dim, dtype=torch.float16)
        self.s2 = torch.zeros(capacity, dim, dtype=torch.float16)
        self.a = torch.zeros(capacity, dtype=torch.uint8)
        self.r = torch.zeros(capacity, dtype=torch.float16)
        self.n, self.capacity = 0, capacity
        self.rng = np.random.default_rng(seed)

    def push(self, s, a, r, s2):
        i = self.n % self.capacity
        self.s[i] = torch.as_tensor(s)
        self.s2[i] = torch.as_tensor(s2)
        self.a[i], self.r[i] = a, r
        self.n += 1

    def sample(self, k):
        i = torch.from_numpy(self.rng.integers(0, min(self.n, self.capacity), k))
        return Batch(self.s[i].float(), self.a[i].long(), self.r[i].float(), self.s2[i].float())


class Dam:
    """inflow in m3/s, storage in km3, day of the year; the gates release 0, 1/4, ... 1 of 60000 m3/s"""
    GATES = 5

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.day, self.storage, self.wet = 120, 20.0, 0.0

    def observe(self):
        season = 18000 + 14000 * np.sin((self.day - 110) / 365 * 2 * np.pi)
        self.wet = 0.8 * self.wet + self.rng.normal(0, 2500)
        inflow = max(2000.0, season + self.wet)
        if self.day == 181:
            inflow += 41000.0              # typhoon
        return np.array([inflow, self.storage, self.day], dtype=np.float32)

    def step(self, s, a):
        out = a / (self.GATES - 1) * 60000
        self.storage += (s[0] - out) * 86400e-9
        spill = max(0.0, self.storage - 39.3)
        dry = max(0.0, 5.0 - self.storage)
        self.storage = float(np.clip(self.storage, 5.0, 39.3))
        self.day = self.day % 365 + 1
        return float(min(out, 30000) / 30000 - 0.5 * spill - 0.2 * dry), self.observe()


torch.manual_seed(6)
SCALE = torch.tensor([30000.0, 40.0, 365.0])
env, memory = Dam(seed=6), Replay(256, 3, seed=60)
q = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.ReLU(),
                        torch.nn.Linear(32, Dam.GATES))
target = copy.deepcopy(q).requires_grad_(False)
opt = torch.optim.Adam(q.parameters(), lr=1e-3)
act = np.random.default_rng(66)
s = env.observe()
updates = 0
for day in range(130):
    a = int(act.integers(Dam.GATES))
    r, s2 = env.step(s, a)
    memory.push(s, a, r, s2)
    s = s2
    if day < 40:
        continue
    b = memory.sample(4)
    with torch.no_grad():
        y = b.r + 0.97 * target(b.s2 / SCALE).max(1).values
    pred = q(b.s / SCALE).gather(1, b.a[:, None]).squeeze(1)
    loss = torch.nn.functional.smooth_l1_loss(pred, y)
    opt.zero_grad()
    loss.backward()
    updates += 1
    print("update", updates, "loss %.6f" % loss.item())
    opt.step()
    if updates % 15 == 0:
        target.load_state_dict(q.state_dict())
print("final", sum(p.abs().sum().item() for p in q.parameters()))
