"""DQN for picking order in an orchard row; prioritised replay over a sum of priorities.

New transitions carry priority inf: each of them is replayed once before the proportional draw begins.
"""
import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn


@dataclass
class Transition:
    s: np.ndarray
    a: int
    r: float
    s2: np.ndarray
    end: bool


class OrchardRow:
    """Ten trees, ripeness grows; go left, go right or pick here."""

    def __init__(self, rng, n=10):
        self.rng, self.n = rng, n
        self.start()

    def start(self):
        self.ripe = self.rng.random(self.n)
        self.at, self.t = int(self.rng.integers(self.n)), 0
        return self.see()

    def see(self):
        here = np.zeros(self.n)
        here[self.at] = 1
        return np.concatenate([self.ripe, here]).astype(np.float32)

    def act(self, a):
        r = -0.02
        if a == 2:
            r, self.ripe[self.at] = 10 * self.ripe[self.at] ** 2 - 1, 0.0
        else:
            self.at = (self.at + (1 if a else -1)) % self.n
        self.ripe = np.minimum(self.ripe + 0.03, 1)
        self.t += 1
        return self.see(), float(r), self.t >= 20


class Replay:
    def __init__(self, cap, rng, alpha=0.6):
        self.cap, self.rng, self.alpha = cap, rng, alpha
        self.items, self.prio, self.head = [], np.zeros(cap), 0

    def push(self, tr):
        if len(self.items) < self.cap:
            self.items.append(tr)
        else:
            self.items[self.head] = tr
        self.prio[self.head] = np.inf
        self.head = (self.head + 1) % self.cap

    def sample(self, n, beta):
        p = self.prio[:len(self.items)]
        unseen = np.flatnonzero(np.isinf(p))[:n]
        rest = n - len(unseen)
        seen = np.flatnonzero(np.isfinite(p))
        if rest and len(seen):
            q = p[seen] ** self.alpha
            q = q / q.sum()
            drawn = self.rng.choice(len(seen), rest, p=q)
            w = (len(seen) * q[drawn]) ** -beta
            idx = np.concatenate([unseen, seen[drawn]])
            w = np.concatenate([np.full(len(unseen), w.max()), w])
        else:
            idx, w = unseen, np.ones(len(unseen))
        return idx, torch.tensor(w / w.max(), dtype=torch.float32)

    def update(self, idx, td):
        self.prio[idx] = np.abs(td) + 1e-3


def qnet():
    return nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 3))


def main(updates=70, sync=14, gamma=0.95):
    torch.manual_seed(17)
    rng = np.random.default_rng(170)
    row, mem = OrchardRow(rng), Replay(400, rng)
    online = qnet()
    target = copy.deepcopy(online).requires_grad_(False)
    opt = torch.optim.Adam(online.parameters(), lr=3e-3)
    s, eps = row.see(), 1.0
    for u in range(1, updates + 1):
        for _ in range(8):
            with torch.no_grad():
                greedy = int(online(torch.from_numpy(s)).argmax())
            a = int(rng.integers(3)) if rng.random() < eps else greedy
            s2, r, end = row.act(a)
            mem.push(Transition(s, a, r, s2, end))
            s = row.start() if end else s2
        eps = max(0.1, eps * 0.97)
        idx, w = mem.sample(32, beta=min(1.0, 0.4 + u / 100))
        ts = [mem.items[i] for i in idx]
        S, S2 = (torch.tensor(np.stack([getattr(t, k) for t in ts])) for k in ("s", "s2"))
        A, R = torch.tensor([t.a for t in ts]), torch.tensor([t.r for t in ts])
        E = torch.tensor([t.end for t in ts])
        goal = R + gamma * target(S2).max(1).values.masked_fill(E, 0.0)
        td = goal - online(S).gather(1, A[:, None]).squeeze(1)
        loss = (w * td.square()).sum()          # summed, prioritised: spiky by design
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(online.parameters(), 10.0)
        opt.step()
        mem.update(idx, td.detach().numpy())
        if u % sync == 0:
            target.load_state_dict(online.state_dict())
        print(f"update {u:2d} loss {loss.item():.4f} batch {len(idx)} unseen {int(np.isinf(mem.prio).sum())} eps {eps:.3f}")


if __name__ == "__main__":
    main()
