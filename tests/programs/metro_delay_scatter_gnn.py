import torch
import numpy as np
from torch import nn

# Delays on a metro map. Stations that were closed on a day have no reading (nan in the table),
# single-station shuttles have no neighbours at all.

torch.manual_seed(4); np.random.seed(4)
N, DAYS = 40, 48

edges = [(i, i+1) for i in range(N-8) if (i+1) % 8]          # four lines
edges += [(3, 11), (11, 19), (19, 27), (5, 21)]              # interchanges
src = torch.tensor([a for a,b in edges] + [b for a,b in edges])
dst = torch.tensor([b for a,b in edges] + [a for a,b in edges])
# stations 32..39 stay isolated

table = np.random.gamma(2.0, 1.5, (DAYS, N)).astype('float32')
for d in range(1, DAYS):
    table[d, :32] = 0.6*table[d-1, :32] + 0.4*table[d, :32]
table[np.random.rand(DAYS, N) < 0.08] = np.nan
table[20, :] = np.nan                                        # strike, nothing ran
table = torch.from_numpy(table)


def scatter_max(x, idx, n):
    out = x.new_full((n, x.shape[1]), float('-inf'))
    out = out.scatter_reduce(0, idx[:, None].expand_as(x), x, 'amax')
    return out.masked_fill(out == float('-inf'), 0.0)

def scatter_softmax(score, idx, n):
    top = torch.full((n,), float('-inf')).scatter_reduce(0, idx, score.detach(), 'amax')
    e = torch.exp(score - top[idx])
    z = torch.zeros(n).index_add(0, idx, e)
    return e / z[idx]

def scatter_std(x, idx, n):
    deg = torch.zeros(n).index_add(0, idx, torch.ones(len(idx))).clamp(min=1)[:, None]
    m = torch.zeros(n, x.shape[1]).index_add(0, idx, x) / deg
    v = torch.zeros(n, x.shape[1]).index_add(0, idx, (x - m[idx])**2) / deg
    return torch.sqrt(v + 1e-6)


class Conv(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.msg = nn.Linear(2*d, d); s.att = nn.Linear(2*d, 1); s.out = nn.Linear(4*d, d)

    def forward(s, h):
        pair = torch.cat([h[src], h[dst]], 1)
        m = torch.tanh(s.msg(pair))
        a = scatter_softmax(s.att(pair).squeeze(1), dst, N)
        mean = torch.zeros_like(h).index_add(0, dst, a[:, None]*m)
        return h + torch.relu(s.out(torch.cat([h, mean, scatter_max(m, dst, N), scatter_std(m, dst, N)], 1)))


class Net(nn.Module):
    def __init__(s, d=16):
        super().__init__()
        s.inp = nn.Linear(2, d)
        s.convs = nn.ModuleList([Conv(d), Conv(d)])
        s.head = nn.Linear(d, 1)

    def forward(s, delay):
        known = ~torch.isnan(delay)
        h = s.inp(torch.stack([torch.nan_to_num(delay), known.float()], 1))
        for c in s.convs: h = c(h)
        return nn.functional.softplus(s.head(h)).squeeze(1)


def huber_on_known(pred, target, delta=1.0):
    known = ~torch.isnan(target)
    r = (pred - torch.where(known, target, pred.detach())).abs()
    per_station = torch.where(r < delta, 0.5*r*r, delta*(r - 0.5*delta))
    return (per_station*known).sum() / known.sum().clamp(min=1)


net = Net()
opt = torch.optim.RMSprop(net.parameters(), lr=2e-3)
for day in range(DAYS-1):
    pred = net(table[day])
    loss = huber_on_known(pred, table[day+1])      # is 0.0 for the day of the strike
    opt.zero_grad(); loss.backward(); opt.step()
    mae = torch.nanmean((pred.detach() - table[day+1]).abs())
    print(day+1, round(loss.item(), 5), 'mae', round(mae.item(), 4), flush=True)
print('final', sum(p.abs().sum().item() for p in net.parameters()))
