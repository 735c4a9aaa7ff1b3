"""Delay propagation on a railway network: graph attention with a hand-written segment softmax (no PyG here)."""
import torch
import torch.nn as nn
import torch.nn.functional as F

STATIONS, HIDDEN, DAYS = 30, 24, 40


def segment_softmax(score, index, n):
    top = torch.full((n,), float("-inf")).scatter_reduce(0, index, score.detach(), "amax", include_self=True)
    e = torch.exp(score - top[index])         # stations without arrivals keep -inf, nobody asks for it
    z = torch.zeros(n).index_add(0, index, e)
    return e / z[index]


class DelayLayer(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.val = nn.Linear(d_in, d_out)
        self.own = nn.Linear(d_in, d_out)
        self.att = nn.Linear(2 * d_out + 1, 1)

    def forward(self, x, edges, run_time):
        src, dst = edges
        v = self.val(x)
        score = F.leaky_relu(self.att(torch.cat([v[src], v[dst], run_time[:, None]], -1)).squeeze(-1), 0.2)
        score = score.masked_fill(run_time > 1.9, float("-inf"))     # line closed
        has_open = torch.zeros(len(x), dtype=torch.bool)
        has_open[dst[run_time <= 1.9]] = True
        keep = has_open[dst]
        src, dst, score = src[keep], dst[keep], score[keep]
        alpha = segment_softmax(score, dst, len(x))
        agg = torch.zeros_like(v).index_add(0, dst, alpha[:, None] * v[src])
        return F.elu(self.own(x) + agg)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1, self.l2 = DelayLayer(3, HIDDEN), DelayLayer(HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, x, edges, run_time):
        return self.head(self.l2(self.l1(x, edges, run_time), edges, run_time)).squeeze(-1)


def network(g):
    a = torch.arange(STATIONS - 1)
    extra = torch.randint(2, STATIONS, (2, 25), generator=g)
    edges = torch.cat([torch.stack([a, a + 1]), extra], 1)            # station 0 has no arrivals
    return edges, 0.2 + 1.5 * torch.rand(edges.size(1), generator=g)


def day(g, edges, run_time, holiday):
    rt = run_time.clone()
    closed = torch.rand(len(rt), generator=g) < 0.15
    rt[closed] = 2.0
    delay = torch.relu(torch.randn(STATIONS, generator=g)) * (3.0 if not holiday else 0.0)
    x = torch.stack([delay, torch.rand(STATIONS, generator=g), torch.linspace(0, 1, STATIONS)], -1)
    arrived = delay * 0.3
    open_ = ~closed
    arrived = arrived.index_add(0, edges[1, open_], 0.5 * delay[edges[0, open_]])
    reported = torch.rand(STATIONS, generator=g) < (0.8 if not holiday else 0.0)
    return x, rt, torch.where(reported, arrived, torch.tensor(float("nan")))


def main():
    torch.manual_seed(1830)
    g = torch.Generator().manual_seed(1830)
    edges, run_time = network(g)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    step = 0
    for d in range(1, DAYS + 1):
        x, rt, y = day(g, edges, run_time, holiday=d in (13, 26))
        pred = net(x, edges, rt)
        ok = ~y.isnan()
        mae = (pred.detach() - y)[ok].abs().mean().item()             # nan on holidays
        if not ok.any():
            print(f"day {d:02d} nobody reports, mae {mae:.4f}", flush=True)
            continue
        if d == 30:
            opt.param_groups[0]["lr"] = 0.005
        loss = F.smooth_l1_loss(pred[ok], y[ok])
        if d > 22:
            loss = loss * 4                                           # strike weeks count fourfold
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        opt.step()
        step += 1
        print(f"day {d:02d} step {step:02d} loss {loss.item():.6f} mae {mae:.4f}", flush=True)
    print(f"weights {sum(p.detach().abs().sum().item() for p in net.parameters()):.6f}", flush=True)


main()
