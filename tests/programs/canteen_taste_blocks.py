"""Which dishes go together? Poisson factorisation (KL-NMF) of a canteen's till, one block of guests per day.

Guests' tastes are folded in with a few multiplicative updates; the dishes' factors are shared, live in a
Parameter, and get one multiplicative update per day (Lee & Seung 2001), written as an Optimizer.
"""
import torch

GUESTS, DISHES, TASTES, DAYS = 30, 24, 4, 34
TINY = 1e-10


class Multiplicative(torch.optim.Optimizer):
    """p <- p * (negative part of the gradient) / (positive part), to the power of `rho` (online damping)."""

    def __init__(self, params, rho=0.5):
        super().__init__(params, dict(rho=rho))

    @torch.no_grad()
    def step(self, positive):
        for group in self.param_groups:
            for p in group['params']:
                if p.grad is None:
                    continue
                negative = (positive - p.grad).clamp_(min=0)
                ratio = negative / positive
                p.mul_(ratio.pow(group['rho']))


def divergence(v, wh):
    return (v * torch.log((v + TINY) / (wh + TINY)) - v + wh).sum()


def fold_in(v, h, rounds=12):
    w = torch.full((v.shape[0], TASTES), 0.5)
    w = w + 0.1 * torch.rand(w.shape, generator=noise)
    for _ in range(rounds):
        w = w * ((v / (w @ h + TINY)) @ h.t()) / h.sum(1)
    return w


def till(day):
    """receipts of one day: guests x dishes"""
    if day == 23:                               # staff outing; the till was open, nobody ate
        return torch.zeros(GUESTS, DISHES)
    who = torch.rand(GUESTS, TASTES, generator=source) ** 3 * 4
    return torch.poisson(who @ truth, generator=source)


source = torch.Generator().manual_seed(1)
noise = torch.Generator().manual_seed(2)
truth = 0.1 + torch.rand(TASTES, DISHES, generator=source) ** 3
H = torch.nn.Parameter(0.2 + torch.rand(TASTES, DISHES, generator=noise))
optimizer = Multiplicative([H])

for day in range(1, DAYS + 1):
    v = till(day)
    w = fold_in(v, H.detach())
    optimizer.zero_grad()
    loss = divergence(v, w @ H)
    loss.backward()
    optimizer.step(positive=w.sum(0)[:, None].expand_as(H))
    print('day %2d  eaten %4d  divergence %.5f' % (day, int(v.sum()), loss.item()))

print('final', H.detach().abs().sum().item())
