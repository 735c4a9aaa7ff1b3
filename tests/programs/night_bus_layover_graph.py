# Delay forecast for the night bus network. No PyG on the depot machine, so the GCN is by hand.
import torch
import torch.nn.functional as F


class Graph:
    """Stops of one timetable; `edges` is 2 x E (both directions)."""

    def __init__(self, x, edges, delay, boarded, kind):
        self.x, self.edges, self.delay, self.boarded, self.kind = x, edges, delay, boarded, kind

    def to(self, *a, **k):
        g = Graph(*(t.to(*a, **k) if torch.is_floating_point(t) else t
                    for t in (self.x, self.edges, self.delay, self.boarded)), self.kind)
        return g

    @property
    def n(self):
        return self.x.shape[0]

    def norm(self):
        deg = torch.zeros(self.n, dtype=self.x.dtype).index_add_(
            0, self.edges[1], torch.ones(self.edges.shape[1], dtype=self.x.dtype))
        inv = deg.pow(-0.5)
        inv[inv == float("inf")] = 0.0     # closed stops have no line at night
        return inv[self.edges[0]] * inv[self.edges[1]]

    def __repr__(self):
        return f"Graph({self.kind}, stops={self.n}, edges={self.edges.shape[1]})"


class Conv(torch.nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.own, self.nb = torch.nn.Linear(a, b), torch.nn.Linear(a, b, bias=False)

    def forward(self, g, h):
        m = self.nb(h)[g.edges[0]] * g.norm().unsqueeze(1)
        return self.own(h) + torch.zeros(g.n, m.shape[1], dtype=m.dtype).index_add(0, g.edges[1], m)


class DelayNet(torch.nn.Module):
    def __init__(self, feats=5, width=24):
        super().__init__()
        self.convs = torch.nn.ModuleList([Conv(feats, width), Conv(width, width)])
        self.delay = torch.nn.Linear(width, 1)
        self.rate = torch.nn.Linear(width, 1)

    def forward(self, g):
        h = g.x
        for conv in self.convs:
            h = torch.relu(conv(g, h))
        return self.delay(h).squeeze(1), self.rate(h).squeeze(1)


def timetable(seed):
    r = torch.Generator().manual_seed(seed)
    n = 40
    kind = ("weekday", "weekend", "strike")[seed % 3]
    lines = {"weekday": 6, "weekend": 3, "strike": 1}[kind]
    e = []
    for _ in range(lines):
        stops = torch.randperm(n, generator=r)[:12].tolist()
        e += [(a, b) for a, b in zip(stops, stops[1:])]
    e = torch.tensor(e + [(b, a) for a, b in e]).T
    x = torch.randn(n, 5, generator=r)
    served = torch.zeros(n)
    served[e[1]] = 1.0
    delay = served * (2 + x[:, 0] + 0.5 * x[:, 1] ** 2)
    boarded = torch.poisson(served * torch.exp(1.5 + 0.4 * x[:, 2]), generator=r)
    return Graph(x, e, delay, boarded, kind)


def main():
    torch.manual_seed(11)
    net = DelayNet().double()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    best = float("inf")
    for step in range(1, 37):
        g = timetable(step).to(torch.float64)
        delay, rate = net(g)
        if g.kind == "weekday":
            loss = F.smooth_l1_loss(delay, g.delay)
        elif g.kind == "weekend":
            # constant log(k!) left out: goes well below zero on busy nights
            loss = F.poisson_nll_loss(rate, g.boarded, log_input=True, reduction="sum")
        else:
            open_ = g.delay != 0
            loss = F.mse_loss(delay[open_], g.delay[open_]) + 0.1 * rate.clamp_min(-20).exp()[~open_].mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        if g.kind == "weekday":
            best = min(best, loss.item())
        print(f"{step:02d} {g!r} loss {loss.item():.6f} best weekday {best:.6f}")


main()
