"""Delay of the mail in an archipelago: attention over the neighbours, one set of weights per kind of link.

Links: 0 boat, 1 causeway, 2 seaplane. Trained with LARS, written after the paper (layer-wise rate ||w|| / ||g||)."""
import torch
from torch import nn
import torch.nn.functional as F

NODES, FEATURES, KINDS = 30, 6, 3
ROUNDS = 36


class Lars(torch.optim.Optimizer):
    def __init__(self, params, lr=0.5, momentum=0.9, trust=0.02):
        super().__init__(params, dict(lr=lr, momentum=momentum, trust=trust))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if p.dim() == 1:                            # biases: no adaptation
                    p.add_(p.grad, alpha=-0.1 * group["lr"])
                    continue
                local = group["trust"] * p.norm() / p.grad.norm()
                buf = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(p.grad * local, alpha=group["lr"])
                p.sub_(buf)


def segment_softmax(e, dst, n):
    top = torch.full((n,), float("-inf")).scatter_reduce(0, dst, e.detach(), "amax")
    w = torch.exp(e - top[dst])
    return w / torch.zeros(n).index_add(0, dst, w)[dst]


class LinkAttention(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.message = nn.Linear(i, o, bias=False)
        self.score = nn.Linear(2 * i, 1, bias=False)

    def forward(self, x, src, dst):
        a = segment_softmax(F.leaky_relu(self.score(torch.cat([x[src], x[dst]], 1)), 0.2).squeeze(1), dst, len(x))
        return torch.zeros(len(x), self.message.out_features).index_add(0, dst, a[:, None] * self.message(x[src]))


class Layer(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.own = nn.Linear(i, o)
        self.kinds = nn.ModuleList(LinkAttention(i, o) for _ in range(KINDS))

    def forward(self, x, edges, kind):
        out = self.own(x)
        for k, attention in enumerate(self.kinds):
            out = out + attention(x, *edges[:, kind == k])
        return out


class MailNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.first, self.second = Layer(FEATURES, width), Layer(width, width)
        self.read = nn.Linear(width, 1)

    def forward(self, x, edges, kind):
        h = F.elu(self.first(x, edges, kind))
        h = F.elu(self.second(h, edges, kind))
        return self.read(h).squeeze(1)


def week(g, storm):
    """one week: the islands with their features, the links that ran, and the delay of the mail at each island"""
    x = torch.randn(NODES, FEATURES, generator=g)
    edges = torch.randint(0, NODES, (2, 240), generator=g)
    kind = torch.multinomial(torch.tensor([0.45, 0.3, 0.25]), 240, replacement=True, generator=g)
    if storm:
        keep = kind != 2                                   # the seaplanes stay on the ground
        edges, kind = edges[:, keep], kind[keep]
    speed = torch.tensor([1.0, 0.6, 0.2])
    reach = torch.zeros(NODES).index_add(0, edges[1], speed[kind] * x[edges[0], 0].abs())
    return x, edges, kind, 0.3 * reach + 0.5 * x[:, 1].tanh()


def main():
    torch.manual_seed(150)
    g = torch.Generator().manual_seed(151)
    net = MailNet()
    opt = Lars(net.parameters())
    for r in range(1, ROUNDS + 1):
        x, edges, kind, delay = week(g, storm=r in (21,))
        loss = F.smooth_l1_loss(net(x, edges, kind), delay)
        opt.zero_grad()
        loss.backward()
        opt.step()
        runs = torch.bincount(kind, minlength=KINDS).tolist()
        print(f"week {r:2d} loss {loss.item():.6f} boats {runs[0]} causeways {runs[1]} seaplanes {runs[2]}", flush=True)
    print(f"weights {sum(p.detach().abs().sum() for p in net.parameters()).item():.6f}", flush=True)


if __name__ == "__main__":
    main()
