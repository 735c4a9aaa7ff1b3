import itertools
import torch
from torch import nn, optim

torch.manual_seed(31)
QUOTES = [(b, a) for b in (0, 1, 2, 3) for a in (0, 1, 2, 3)]     # ticks from mid for bid and ask, 0 is no quote
BID = torch.tensor([b for b, _ in QUOTES])
ASK = torch.tensor([a for _, a in QUOTES])


def session(gen, limit, length, desks=24):
    """generator of a market: yields (state, permitted quotes), receives the quotes, yields the profit"""
    inv = torch.zeros(desks)
    drift = 0.1 * torch.randn(desks, generator=gen)
    for left in range(length, 0, -1):
        ok = ~(((inv >= limit)[:, None] & (BID > 0)) | ((inv <= -limit)[:, None] & (ASK > 0)))
        state = torch.stack([inv / limit, drift * 5, torch.full_like(inv, left / length)], 1)
        act = yield state, ok
        b, a = BID[act], ASK[act]
        hit = (b > 0) & (torch.rand(desks, generator=gen) < torch.exp(-0.7 * b))
        lift = (a > 0) & (torch.rand(desks, generator=gen) < torch.exp(-0.7 * a))
        move = drift + 0.4 * torch.randn(desks, generator=gen)
        inv = inv + hit.float() - lift.float()
        pnl = hit * b + lift * a + inv * move - 0.02 * inv ** 2
        if left == 1:
            pnl = pnl - 0.5 * inv.abs()
        yield pnl


class Desk(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 32), nn.Tanh())
        self.pi, self.v = nn.Linear(32, len(QUOTES)), nn.Linear(32, 1)
        nn.init.zeros_(self.pi.weight)

    def forward(self, s, ok):
        h = self.body(s)
        return self.pi(h).masked_fill(~ok, -torch.inf).log_softmax(-1), self.v(h).squeeze(-1)


def play(desk, gen, limit, length):
    env = session(gen, limit, length)
    logs, values, gains, ent = [], [], [], []
    for s, ok in env:
        lp, v = desk(s, ok)
        act = torch.multinomial(lp.detach().exp(), 1, generator=gen)
        logs.append(lp.gather(1, act).squeeze(1))
        ent.append(-(lp.exp() * lp.masked_fill(~ok, 0.0)).sum(1))
        values.append(v)
        gains.append(env.send(act.squeeze(1)))
    togo = torch.stack(list(itertools.accumulate(reversed(gains)))[::-1]) / length
    return tuple(map(torch.stack, (logs, values, ent))) + (togo,)


def curriculum():
    yield from ((1, 4) for _ in range(12))
    yield from ((2, 8) for _ in range(12))
    yield from ((4, 14) for _ in range(16))


desk, gen = Desk(), torch.Generator().manual_seed(5)
opt = optim.RMSprop([{"params": desk.body.parameters()}, {"params": [*desk.pi.parameters(), *desk.v.parameters()]}],
                    lr=2e-3, alpha=0.95, centered=False)
for n, (limit, length) in enumerate(curriculum(), 1):
    logp, value, entropy, togo = play(desk, gen, limit, length)
    adv = (togo - value.detach())
    adv = (adv - adv.mean(1, keepdim=True)) / (adv.std(1, keepdim=True) + 1.0)
    loss = -(adv * logp).sum() - 0.01 * entropy.sum() + 0.05 * (togo - value).square().sum()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(desk.parameters(), 25.0)
    opt.step()
    print(f"{n:2d} limit {limit} loss {loss.item():+10.3f} profit {togo[0].mean().item():+.3f}", flush=True)
