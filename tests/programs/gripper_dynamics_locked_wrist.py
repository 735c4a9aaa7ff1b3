"""Dynamics ensemble for MPC on a gripper arm: five members, Gaussian heads with log variance,
trained together with vmap over stacked parameters. Every 10 steps the planner collects a new rollout."""
import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap


@dataclass
class Cfg:
    members: int = 5
    joints: int = 4
    hidden: int = 64
    steps: int = 60
    batch: int = 64
    lr: float = 0.02
    horizon: int = 6
    candidates: int = 32
    seed: int = 8


class Member(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3 * c.joints, c.hidden), nn.SiLU(),
                                   nn.Linear(c.hidden, c.hidden), nn.SiLU())
        self.mean = nn.Linear(c.hidden, c.joints)
        self.logvar = nn.Linear(c.hidden, c.joints)

    def forward(self, q, dq, u):
        h = self.trunk(torch.cat([q, dq, u], -1))
        # a joint moves only if it is driven or already moving
        moving = ((u != 0) | (dq != 0)).float()
        return moving * self.mean(h), self.logvar(h)


def arm(q, dq, u, g):
    """true dynamics; the wrist (last joint) is locked in this week's sessions"""
    acc = 3.0 * u - 0.8 * dq - 0.6 * torch.sin(q)
    acc = acc + 0.05 * torch.randn(acc.shape, generator=g)
    acc[:, -1] = 0
    return q + 0.05 * dq, dq + 0.05 * acc


def command(c, n, g):
    u = torch.rand(n, c.joints, generator=g) * 2 - 1
    u[:, -1] = 0
    return u


def plan(call, params, c, q, dq, g):
    """random shooting with the mean of the ensemble"""
    best = None
    with torch.no_grad():
        u = torch.stack([command(c, c.candidates, g) for _ in range(c.horizon)])
        qs, ds, cost = q.expand(c.candidates, -1), dq.expand(c.candidates, -1), torch.zeros(c.candidates)
        for t in range(c.horizon):
            m, _ = call(params, qs, ds, u[t])
            qs, ds = qs + 0.05 * ds, ds + 0.05 * m.mean(0)
            cost = cost + (qs - 0.5).pow(2).sum(1)
        best = u[0, cost.argmin()]
    return best[None]


def nll(mean, logvar, target):
    inv_var = torch.exp(-logvar)
    return (0.5 * (inv_var * (mean - target) ** 2 + logvar)).mean((1, 2)).sum()


def main():
    c = Cfg()
    g = torch.Generator().manual_seed(c.seed)
    torch.manual_seed(c.seed)
    members = [Member(c) for _ in range(c.members)]
    params, _ = stack_module_state(members)
    base = copy.deepcopy(members[0]).to("meta")
    call = lambda p, q, dq, u: vmap(lambda w: functional_call(base, w, (q, dq, u)))(p)
    opt = torch.optim.Adam(list(params.values()), lr=c.lr)

    store = []

    def rollout(planned):
        q, dq = torch.zeros(1, c.joints), torch.zeros(1, c.joints)
        for _ in range(30):
            u = plan(call, params, c, q, dq, g) if planned else command(c, 1, g)
            q2, dq2 = arm(q, dq, u, g)
            store.append((q, dq, u, (dq2 - dq) / 0.05))
            q, dq = q2, dq2

    for _ in range(6):
        rollout(False)
    for step in range(1, c.steps + 1):
        if step % 10 == 0:
            rollout(True)
        idx = torch.randint(0, len(store), (c.batch,), generator=g).tolist()
        q, dq, u, acc = (torch.cat([store[i][k] for i in idx]) for k in range(4))
        mean, logvar = call(params, q, dq, u)
        loss = nll(mean, logvar, acc)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{step:3d} nll {loss.item():.5f}", flush=True)
    print("sum of |w|", sum(p.detach().abs().sum().item() for p in params.values()), flush=True)


if __name__ == "__main__":
    main()
