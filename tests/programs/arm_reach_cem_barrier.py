#!/usr/bin/env python3
"""Behaviour cloning of a cross-entropy-method planner, 3-joint planar arm beside a wall.

The planner scores candidates with a log barrier; a candidate that touches the wall costs
-log(0) = inf and simply never becomes an elite.  The policy is regressed on the elites.
"""
import argparse
import torch
from torch import nn, Tensor


def forward_kinematics(q: Tensor, lengths: Tensor) -> Tensor:
    heading = torch.cumsum(q, dim=-1)
    x = torch.cumsum(lengths * torch.cos(heading), dim=-1)
    y = torch.cumsum(lengths * torch.sin(heading), dim=-1)
    return torch.stack((x, y), dim=-1)                      # (..., joints, 2)


@torch.no_grad()
def cem(goal: Tensor, lengths: Tensor, rounds: int, pop: int, g: torch.Generator):
    mu = torch.zeros(goal.shape[0], 3)
    sd = torch.full_like(mu, 1.2)
    blocked = 0
    for _ in range(rounds):
        q = mu + sd * torch.randn(pop, *mu.shape, generator=g)
        pts = forward_kinematics(q, lengths)
        clearance = (1.1 - pts[..., 0]).amin(-1)            # the wall stands at x = 1.1
        barrier = -0.02 * torch.log(clearance.clamp(min=0.0))
        cost = (pts[..., -1, :] - goal).square().sum(-1) + barrier
        blocked += int(torch.isinf(cost).sum())
        elite = cost.argsort(dim=0)[: pop // 10]
        chosen = torch.gather(q, 0, elite[..., None].expand(-1, -1, 3))
        mu, sd = chosen.mean(0), chosen.std(0) + 0.02
    return mu, sd, blocked, cost.mean()                      # the mean is inf: infeasible ones count


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU())
        self.mean = nn.Linear(48, 3)
        self.log_sd = nn.Parameter(torch.zeros(3))
        self.register_buffer("worst_cost", torch.zeros(()))

    def forward(self, goal):
        return self.mean(self.body(goal)), self.log_sd.exp()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--iters", type=int, default=40)
    ap.add_argument("--seed", type=int, default=11)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    g = torch.Generator().manual_seed(a.seed + 1)
    lengths = torch.tensor([0.6, 0.5, 0.3])
    pi = Policy()
    opt = torch.optim.NAdam(pi.parameters(), lr=5e-3)
    for it in range(1, a.iters + 1):
        goal = torch.empty(12, 2).uniform_(-0.8, 0.9, generator=g)
        mu, sd, blocked, mean_cost = cem(goal, lengths, 4, 80, g)
        pi.worst_cost = torch.maximum(pi.worst_cost, mean_cost)     # kept for the dashboard
        m, s = pi(goal)
        kl = (s.log() - sd.log() + (sd.square() + (mu - m).square()) / (2 * s.square()) - 0.5)
        loss = kl.sum(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"it {it:02d}  kl {loss.item():.6f}  infeasible {blocked:5d}  mean cost {mean_cost.item():.3f}")
    print("final", sum(p.detach().abs().sum().item() for p in pi.parameters()))


if __name__ == "__main__":
    main()
