"""Double DQN with a target network and prioritised replay: when to dispatch the two cars of a funicular.

State: waiting people below / above, position of the cars, time of the day. Actions: hold, go, go slow, open doors,
of which only some are legal in a state; an illegal action has the value -inf.
"""
import collections
import logging
import random
import sys

import numpy as np
import torch
from torch import nn

logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
log = logging.getLogger("funicular")
HOLD, GO, SLOW, DOORS = range(4)
Transition = collections.namedtuple("Transition", "s a r s2 mask2 done")


class Funicular:
    def __init__(self, rng):
        self.rng = rng
        self.reset()

    def reset(self):
        self.low, self.high, self.pos, self.minute = 3, 3, 0, 0
        return self.state()

    def state(self):
        return np.array([self.low / 10, self.high / 10, self.pos / 5, self.minute / 60], dtype=np.float32)

    def legal(self):
        m = np.zeros(4, dtype=bool)
        if self.pos == 0:
            m[[HOLD, GO, DOORS]] = True
        else:
            m[[GO, SLOW]] = True
        if self.minute >= 60:
            m[:] = False                       # closed: no action is legal in the last state of a day
        return m

    def step(self, a):
        r = -0.1 * (self.low + self.high)
        if a == GO:
            self.pos = (self.pos + 2) % 6
        elif a == SLOW:
            self.pos = (self.pos + 1) % 6
            r -= 0.05
        elif a == DOORS:
            took = min(self.low, 6) + min(self.high, 6)
            self.low, self.high = max(self.low - 6, 0), max(self.high - 6, 0)
            r += took
        self.low += self.rng.poisson(0.5)
        self.high += self.rng.poisson(0.4)
        self.minute += 2
        return self.state(), float(r), self.minute >= 60


class Replay:
    def __init__(self, size, alpha=0.6):
        self.data, self.prio, self.size, self.alpha, self.at = [], np.full(size, -np.inf), size, alpha, 0

    def add(self, tr):
        p = np.inf if not self.data else max(self.prio[:len(self.data)].max(), 1.0)   # inf: seen before anything else
        if len(self.data) < self.size:
            self.data.append(tr)
        else:
            self.data[self.at] = tr
        self.prio[self.at] = p
        self.at = (self.at + 1) % self.size

    def sample(self, n, beta, rng):
        p = self.prio[:len(self.data)]
        fresh = np.flatnonzero(np.isinf(p))
        if len(fresh):
            w = np.isinf(p) * 1.0
        else:
            w = p ** self.alpha
        w = w / w.sum()
        idx = rng.choice(len(w), n, p=w)
        imp = (len(w) * w[idx]) ** -beta
        return idx, (imp / imp.max()).astype(np.float32)

    def update(self, idx, err):
        self.prio[idx] = np.abs(err) + 1e-3


class Duel(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.v, self.adv = nn.Linear(48, 1), nn.Linear(48, 4)

    def forward(self, s, mask):
        h = self.body(s)
        adv = self.adv(h)
        q = self.v(h) + adv - adv.mean(1, keepdim=True)
        return q.masked_fill(~mask, float("-inf"))


def main(rounds=50, batch=32, gamma=0.95):
    random.seed(5), torch.manual_seed(5)
    rng = np.random.default_rng(5)
    env, buf = Funicular(rng), Replay(300)
    online, target = Duel(), Duel()
    target.load_state_dict(online.state_dict())
    opt = torch.optim.RMSprop(online.parameters(), lr=1e-3)
    s, ret, finished = env.reset(), 0.0, []
    for step in range(1, rounds + 1):
        recent = []
        for _ in range(16):
            m = env.legal()
            if rng.random() < max(0.1, 1 - step / 30):
                a = int(rng.choice(np.flatnonzero(m)))
            else:
                with torch.no_grad():
                    a = int(online(torch.from_numpy(s)[None], torch.from_numpy(m)[None]).argmax())
            s2, r, done = env.step(a)
            buf.add(Transition(s, a, r, s2, env.legal(), done))
            ret += r
            s = s2
            if done:
                recent.append(ret)
                s, ret = env.reset(), 0.0
        idx, w = buf.sample(batch, min(1.0, 0.4 + step / 80), rng)
        tr = [buf.data[i] for i in idx]
        S, S2 = (torch.from_numpy(np.stack([getattr(t, k) for t in tr])) for k in ("s", "s2"))
        A = torch.tensor([t.a for t in tr])
        R = torch.tensor([t.r for t in tr])
        M2 = torch.from_numpy(np.stack([t.mask2 for t in tr]))
        done = torch.tensor([t.done for t in tr])
        with torch.no_grad():
            best = online(S2, M2).argmax(1, keepdim=True)
            nxt = target(S2, M2).gather(1, best).squeeze(1)         # -inf after the last minute of a day
            y = R + torch.where(done, torch.zeros_like(nxt), gamma * nxt)
        q = online(S, torch.ones(batch, 4, dtype=torch.bool)).gather(1, A[:, None]).squeeze(1)
        err = q - y
        loss = (torch.from_numpy(w) * nn.functional.huber_loss(q, y, reduction="none", delta=5.0)).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(online.parameters(), 1.0)
        opt.step()
        buf.update(idx, err.detach().numpy())
        if step % 10 == 0:
            target.load_state_dict(online.state_dict())             # the loss jumps after this, as it should
        finished += recent
        mean = sum(recent) / len(recent) if recent else float("nan")
        log.info("round %3d loss %.6f return %.3f days %d lowest next value %.2f",
                 step, loss.item(), mean, len(finished), nxt.min().item())
    log.info("weights %.6f", sum(p.detach().abs().sum().item() for p in online.parameters()))


if __name__ == "__main__":
    main()
