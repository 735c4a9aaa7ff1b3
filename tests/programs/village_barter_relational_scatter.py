"""Relational graph network on barter among villages: how much is each house owed at the end of the week?

Each week is one graph. Edges have one of five kinds (grain, wool, labour, fish, salt). Messages are gathered by
index_add; each kind has its own matrix. The optimizer standardises the gradient of each matrix, so that
kinds of which there is much trade do not drown the others.
"""
from dataclasses import dataclass

import torch
from torch import nn

KINDS = ("grain", "wool", "labour", "fish", "salt")


@dataclass
class Week:
    feats: torch.Tensor
    src: torch.Tensor
    dst: torch.Tensor
    kind: torch.Tensor
    owed: torch.Tensor


def draw_week(number, gen, houses=30, deals=120):
    feats = torch.randn(houses, 6, generator=gen)
    src = torch.randint(0, houses, (deals,), generator=gen)
    dst = torch.randint(0, houses, (deals,), generator=gen)
    kind = torch.randint(0, len(KINDS), (deals,), generator=gen)
    if number == 19:                                   # storm week: no boat went out
        kind[kind == KINDS.index("fish")] = KINDS.index("labour")
    price = torch.tensor([1.0, 0.6, 0.3, 0.8, 1.4])[kind]
    owed = torch.zeros(houses).index_add(0, dst, price * feats[src, 0].tanh())
    return Week(feats, src, dst, kind, owed)


class RelationalLayer(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.own = nn.Linear(n_in, n_out)
        self.by_kind = nn.ParameterList([nn.Parameter(torch.randn(n_in, n_out) * n_in ** -0.5) for _ in KINDS])

    def forward(self, h, week):
        out = self.own(h)
        for k, matrix in enumerate(self.by_kind):
            of_kind = week.kind == k
            messages = h[week.src[of_kind]] @ matrix
            out = out.index_add(0, week.dst[of_kind], messages)
        return out


class BarterNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.first = RelationalLayer(6, width)
        self.second = RelationalLayer(width, width)
        self.owed = nn.Linear(width, 1)

    def forward(self, week):
        h = torch.tanh(self.first(week.feats, week))
        h = h + torch.tanh(self.second(h, week))
        return self.owed(h).squeeze(-1)


class StandardisedDescent(torch.optim.Optimizer):
    """Each matrix moves along its gradient after that was brought to unit spread; vectors move plainly."""

    def __init__(self, params, lr=1e-2, decay=0.0):
        super().__init__(params, dict(lr=lr, decay=decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                direction = p.grad
                if p.dim() > 1 and p.numel() > 32:
                    direction = (p.grad - p.grad.mean()) / p.grad.std()
                p.mul_(1 - group["lr"] * group["decay"])
                p.add_(direction, alpha=-group["lr"])


def train(weeks=36):
    torch.manual_seed(5)
    gen = torch.Generator().manual_seed(6)
    net = BarterNet()
    opt = StandardisedDescent(net.parameters(), lr=4e-3, decay=1e-3)
    for number in range(1, weeks + 1):
        week = draw_week(number, gen)
        loss = nn.functional.smooth_l1_loss(net(week), week.owed)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"week {number:02d} | loss {loss.item():.8f}", flush=True)
    return net


if __name__ == "__main__":
    trained = train()
    print("sum |w| =", f"{sum(p.detach().abs().sum() for p in trained.parameters()).item():.6f}")
