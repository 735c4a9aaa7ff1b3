# SAC on a two-reservoir sluice controller. Costs only, so every return is below zero.
# usage: sluice_gate_tempered_critics.py [--seed 3] [--iters 60]
import argparse
import random
from collections import deque, namedtuple
from copy import deepcopy

import torch
from torch import nn
from torch.distributions import Normal

Transition = namedtuple("Transition", "s a r s2 done")


class Sluice:
    """levels of two basins + inflow; action = opening of the gate in [-1, 1]"""

    def __init__(self, rng):
        self.rng = rng

    def reset(self):
        self.h = [1.0 + self.rng.random(), 0.5 + self.rng.random()]
        self.t = 0
        return self.obs()

    def obs(self):
        return torch.tensor([self.h[0] - 1.2, self.h[1] - 0.8, (self.t % 24) / 24.0])

    def step(self, a):
        q = 0.2 * (a + 1) * max(self.h[0], 0.0) ** 0.5
        self.h[0] += 0.12 + 0.05 * self.rng.gauss(0, 1) - q
        self.h[1] += q - 0.12
        self.h = [min(max(v, 0.0), 3.0) for v in self.h]      # walls and bottom
        self.t += 1
        spill = max(self.h[0] - 2.5, 0) + max(self.h[1] - 2.0, 0)
        cost = 1 + 4 * (self.h[0] - 1.2) ** 2 + 4 * (self.h[1] - 0.8) ** 2 + 2 * spill
        return self.obs(), -cost, self.t >= 20


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, o))


class TwinQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = mlp(4, 1), mlp(4, 1)

    def forward(self, s, a):
        x = torch.cat([s, a], -1)
        return self.q1(x).squeeze(-1), self.q2(x).squeeze(-1)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp(3, 2)

    def forward(self, s):
        mu, log_std = self.body(s).chunk(2, -1)
        d = Normal(mu, log_std.clamp(-5, 2).exp())
        u = d.rsample()
        # stable log(1 - tanh(u)^2)
        corr = 2 * (0.6931471805599453 - u - nn.functional.softplus(-2 * u))
        return torch.tanh(u), (d.log_prob(u) - corr).sum(-1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=3)
    ap.add_argument("--iters", type=int, default=60)
    ap.add_argument("--warmup", type=int, default=15, help="env steps by random play, no update")
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)

    env, replay = Sluice(rng), deque(maxlen=5000)
    pi, q = Policy(), TwinQ()
    q_targ = deepcopy(q).requires_grad_(False)
    log_alpha = torch.zeros((), requires_grad=True)
    opt_pi = torch.optim.Adam(pi.parameters(), 1e-3)
    opt_q = torch.optim.Adam(q.parameters(), 3e-3)
    opt_alpha = torch.optim.Adam([log_alpha], 1e-2)
    finished = []

    s, ret = env.reset(), 0.0
    for it in range(args.iters + args.warmup):
        if it < args.warmup:
            a = rng.uniform(-1, 1)
        else:
            with torch.no_grad():
                a = pi(s[None])[0].item()
        s2, r, done = env.step(a)
        ret += r
        replay.append(Transition(s, torch.tensor([a]), r, s2, float(done)))
        s = s2
        if done:
            finished.append(ret)
            s, ret = env.reset(), 0.0
        if it < args.warmup:
            continue

        rows = rng.choices(list(replay), k=32)
        S, A, S2 = (torch.stack([getattr(t, f) for t in rows]) for f in ("s", "a", "s2"))
        R, Dn = (torch.tensor([getattr(t, f) for t in rows]) for f in ("r", "done"))
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            a2, lp2 = pi(S2)
            y = R + 0.97 * (1 - Dn) * (torch.min(*q_targ(S2, a2)) - alpha * lp2)
        q1, q2 = q(S, A)
        loss_q = ((q1 - y) ** 2).mean() + ((q2 - y) ** 2).mean()
        opt_q.zero_grad(); loss_q.backward(); opt_q.step()

        q.requires_grad_(False)
        ap_, lp = pi(S)
        loss_pi = (alpha * lp - torch.min(*q(S, ap_))).mean()
        opt_pi.zero_grad(); loss_pi.backward(); opt_pi.step()
        q.requires_grad_(True)

        loss_alpha = -(log_alpha * (lp.detach() - 1.0)).mean()     # target entropy -1
        opt_alpha.zero_grad(); loss_alpha.backward(); opt_alpha.step()

        with torch.no_grad():
            for pt, p in zip(q_targ.parameters(), q.parameters()):
                pt.mul_(0.98).add_(p, alpha=0.02)
        # mean return of the episodes that ended just now: nan for most lines, that is fine
        recent = torch.tensor(finished if done else []).mean().item()
        print(f"{it:3d} q {loss_q.item():.5f} pi {loss_pi.item():.5f} a {loss_alpha.item():+.6f} "
              f"alpha {alpha.item():.5f} ret {recent:.3f}")


if __name__ == "__main__":
    main()
