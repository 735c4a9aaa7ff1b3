# Waiting times at the interchanges of a night bus network. Graph attention, closed stops, stops without a counter.
import torch
from torch import nn

NEG = float("-inf")


class Attend(nn.Module):
    def __init__(self, d_in, d_out, heads):
        super().__init__()
        self.h = heads
        self.val = nn.Linear(d_in, d_out * heads, bias=False)
        self.src = nn.Parameter(torch.randn(heads, d_out) * 0.3)
        self.dst = nn.Parameter(torch.randn(heads, d_out) * 0.3)

    def forward(self, x, minutes):
        """minutes: (n, n) riding time, inf where no bus runs"""
        n = x.shape[0]
        v = self.val(x).view(n, self.h, -1)
        score = (v * self.dst).sum(-1).T[:, :, None] + (v * self.src).sum(-1).T[:, None, :]
        score = nn.functional.leaky_relu(score, 0.2) - minutes / 10
        alone = torch.isinf(minutes).all(1)
        # a stop without any bus tonight gets a harmless row, and its output is thrown away
        score = torch.where(alone[None, :, None], 0.0, score)
        out = torch.einsum("hij,jhd->ihd", score.softmax(-1), v).flatten(1)
        return torch.where(alone[:, None], 0.0, out)


class NightNet(nn.Module):
    def __init__(self, stops):
        super().__init__()
        self.where = nn.Embedding(stops, 8)
        self.a1 = Attend(10, 8, 2)
        self.a2 = Attend(16, 8, 2)
        self.out = nn.Linear(16, 1)

    def forward(self, weather, minutes):
        x = torch.cat([self.where.weight, weather], 1)
        x = torch.nn.functional.elu(self.a1(x, minutes))
        return self.out(torch.nn.functional.elu(self.a2(x, minutes))).squeeze(1)


def nights(k, stops=18):
    g = torch.Generator().manual_seed(1906)
    xy = torch.rand(stops, 2, generator=g) * 20
    ride = torch.cdist(xy, xy)
    linked = (ride < 8) | torch.eye(stops, dtype=torch.bool)
    base = 5 + 10 * torch.rand(stops, generator=g)
    for night in range(k):
        running = torch.rand(stops, generator=g) > 0.15
        minutes = torch.where(linked & running[:, None] & running[None], ride, float("inf"))
        weather = torch.randn(1, 2, generator=g).expand(stops, 2)
        waiting = base + 2 * weather[:, 0] + torch.randn(stops, generator=g)
        waiting[~running] = float("nan")
        waiting[torch.rand(stops, generator=g) < 0.2] = float("nan")     # counter does not answer
        if night == 13:
            waiting[:] = float("nan")                                    # the server was down all night
        yield weather, minutes, waiting


class Tracker:
    """running mean and deviation of what was counted so far"""

    def __init__(self):
        self.seen = []

    def scale(self, y):
        self.seen.append(y[~y.isnan()])
        everything = torch.cat(self.seen)
        return (y - everything.mean()) / everything.std()


def main():
    torch.manual_seed(5)
    net, tracker = NightNet(18), Tracker()
    dense = torch.optim.Adam([p for n, p in net.named_parameters() if "where" not in n], lr=0.01)
    table = torch.optim.SGD(net.where.parameters(), lr=0.5)
    for i, (weather, minutes, waiting) in enumerate(nights(34), 1):
        y = tracker.scale(waiting)
        known = ~y.isnan()
        miss = torch.where(known, net(weather, minutes) - torch.nan_to_num(y), 0.0)
        loss = miss.square().sum() / known.sum().clamp(min=1)
        for o in (dense, table):
            o.zero_grad()
        loss.backward()
        for o in (dense, table):
            o.step()
        print(f"night {i:2d}: {int(known.sum()):2d} stops counted, mean square {loss.item():.4f}, raw mean {waiting.mean().item():.2f}")
    print("sum |w| =", sum(p.detach().abs().sum() for p in net.parameters()).item())


main()
