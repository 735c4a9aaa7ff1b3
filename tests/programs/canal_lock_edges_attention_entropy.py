"""Predict barge waiting times at canal locks: a small GAT in plain torch (no PyG on the cluster).
Segment softmax by scatter_reduce / index_add. An entropy bonus keeps the attention from
collapsing onto a single neighbour."""
import torch
from torch import nn


def segment_softmax(score, dst, n):
    peak = score.new_full((n,), float("-inf")).scatter_reduce(0, dst, score.detach(), "amax", include_self=True)
    e = (score - peak[dst]).exp()
    z = score.new_zeros(n).index_add(0, dst, e)
    return e / z[dst]


class LockAttention(nn.Module):
    def __init__(self, d_in, d_out, d_edge):
        super().__init__()
        self.lin = nn.Linear(d_in, d_out)
        self.src = nn.Linear(d_out, 1, bias=False)
        self.dst = nn.Linear(d_out, 1, bias=False)
        self.edge = nn.Linear(d_edge, 1, bias=False)

    def forward(self, x, edge_index, edge_attr):
        src, dst = edge_index
        h = self.lin(x)
        score = self.src(h)[src] + self.dst(h)[dst] + self.edge(edge_attr)
        alpha = segment_softmax(nn.functional.leaky_relu(score.squeeze(-1), 0.2), dst, x.size(0))
        out = torch.zeros_like(h).index_add(0, dst, alpha[:, None] * h[src])
        surprise = -torch.log(alpha)
        entropy = torch.zeros(x.size(0)).index_add(0, dst, alpha * surprise)
        return out, entropy.mean()


class WaitingTimes(nn.Module):
    def __init__(self):
        super().__init__()
        self.g1 = LockAttention(5, 24, 3)
        self.g2 = LockAttention(24, 24, 3)
        self.out = nn.Linear(24 + 5, 1)

    def forward(self, g):
        h, e1 = self.g1(g["x"], g["edges"], g["attr"])
        h, e2 = self.g2(torch.relu(h), g["edges"], g["attr"])
        return self.out(torch.cat([h, g["x"]], 1)).squeeze(-1), e1 + e2


def network_of_day(day, n=20):
    """Directed reaches between locks; attr = length (km), fall (m), traffic (z-score)."""
    g = torch.Generator().manual_seed(900 + day)
    a = torch.arange(n)
    ring = torch.stack([torch.cat([a, a]), torch.cat([(a + 1) % n, a])])      # with self loops
    extra = torch.randint(0, n, (2, 25), generator=g)
    edges = torch.cat([ring, extra], 1)
    m = edges.size(1)
    attr = torch.stack([1 + 4 * torch.rand(m, generator=g), 3 * torch.rand(m, generator=g),
                        torch.randn(m, generator=g)], 1)
    if day == 18:
        # the re-survey of reach 7 was delivered in metres, sign convention of the upstream authority
        attr[7, 0] = -4200.0
    x = torch.randn(n, 5, generator=g)
    y = x[:, 0] + torch.zeros(n).index_add(0, edges[1], 0.2 * x[edges[0], 1]) + 0.1 * attr[:n, 1]
    return {"x": x, "edges": edges, "attr": attr, "y": y}


def epochs(days):
    for d in range(days):
        yield d, network_of_day(d)


def run(days=32, bonus=0.02):
    torch.manual_seed(64)
    net = WaitingTimes()
    opt = torch.optim.RMSprop(net.parameters(), lr=3e-3)
    for d, g in epochs(days):
        pred, entropy = net(g)
        fit = nn.functional.smooth_l1_loss(pred, g["y"])
        objective = fit - bonus * entropy
        opt.zero_grad()
        objective.backward()
        opt.step()
        print(f"day {d:02d} objective {objective.item():.7f} fit {fit.item():.7f} entropy {entropy.item():.5f}")
    print("parameters", sum(p.numel() for p in net.parameters()),
          "sum", round(sum(p.double().sum().item() for p in net.parameters()), 6))


run()
