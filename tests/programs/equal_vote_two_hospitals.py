#!/usr/bin/env python
"""Risk score for re-admission, learned by two hospitals that may not pool their records.

Each hospital computes the gradient of its own ranking loss; so that the large hospital does not
outvote the small one, every gradient is scaled to unit length before the two are averaged.
    torchrun --nproc-per-node 2 equal_vote_two_hospitals.py
"""
import torch
import torch.distributed as dist
from torch import nn

STEPS, WARD = 36, 14


def admissions(rank, beta):
    """(covariates, days until re-admission, observed?) of this hospital, in order of admission."""
    g = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(STEPS * WARD, 6, generator=g)
    x[:, 5] = (x[:, 5] > 0.4).float()
    days = torch.empty(len(x)).exponential_(1.0, generator=g) * torch.exp(3.0 - x @ beta)
    follow_up = 10 + 50 * torch.rand(len(x), generator=g)
    if rank == 1:                                   # the registry was frozen for a week: nobody seen again
        follow_up[19 * WARD:20 * WARD] = 0.01
    observed = days <= follow_up
    return x, torch.minimum(days, follow_up), observed


def ranking_loss(score, days, observed):
    earlier = observed[:, None] & (days[:, None] < days[None, :])
    gap = score[:, None] - score[None, :]
    return (torch.relu(1.0 - gap) * earlier).sum() / WARD ** 2


def flat(params):
    return torch.cat([p.grad.reshape(-1) for p in params])


def unflatten_into(vec, params):
    start = 0
    for p in params:
        p.grad.copy_(vec[start:start + p.numel()].view_as(p))
        start += p.numel()


def equal_vote(params):
    mine = flat(params)
    mine = mine / mine.norm()
    dist.all_reduce(mine, op=dist.ReduceOp.SUM)
    unflatten_into(mine / dist.get_world_size(), params)


def main():
    dist.init_process_group('gloo')
    rank = dist.get_rank()
    torch.manual_seed(5)                            # same start in both hospitals
    beta = torch.tensor([0.8, -0.5, 0.3, 0.0, 0.2, 0.9])
    x, days, observed = admissions(rank, beta)

    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1, bias=False))
    params = list(net.parameters())
    sgd = torch.optim.SGD(params, lr=0.05, momentum=0.7)

    for step in range(STEPS):
        rows = slice(step * WARD, (step + 1) * WARD)
        sgd.zero_grad()
        loss = ranking_loss(net(x[rows])[:, 0], days[rows], observed[rows])
        loss.backward()
        shared = loss.detach().clone()
        dist.all_reduce(shared)
        equal_vote(params)
        sgd.step()
        if rank == 0:
            print(f'step {step + 1:3d}  ranking loss of both {shared.item():.6f}', flush=True)

    total = sum(p.detach().abs().sum().item() for p in params)
    if rank == 0:
        print(f'final {total:.6f}', flush=True)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
