"""Money-mule detection on payment graphs: two rounds of sum aggregation, float16 autocast, GradScaler.

Each batch is one day of one branch as a dense graph (accounts x accounts, entries are the number of payments).
"""
import torch
from torch import nn


class SumAggregation(nn.Module):
    """GIN without the epsilon: own state plus the sum over the counterparties."""

    def __init__(self, cin, cout):
        super().__init__()
        self.lin = nn.Sequential(nn.Linear(cin, cout), nn.ReLU())

    def forward(self, adj, h):
        return self.lin(h + torch.matmul(adj, h))


class MuleNet(nn.Module):
    def __init__(self, features, width=24):
        super().__init__()
        self.rounds = nn.ModuleList([SumAggregation(features, width), SumAggregation(width, width)])
        self.squash = nn.LayerNorm(width)
        self.readout = nn.Linear(width, 1)

    def forward(self, adj, x):
        for r in self.rounds:
            x = r(adj, x)
        return self.readout(self.squash(x)).squeeze(-1)


def branch_day(gen, accounts=220, payroll=False):
    adj = (torch.rand(accounts, accounts, generator=gen) < 0.02).float()
    adj = torch.triu(adj, 1)
    x = torch.stack([
        10 * torch.rand(accounts, generator=gen),               # account age, years
        torch.randn(accounts, generator=gen).exp() * 15,        # mean amount, in hundreds
        torch.randint(0, 24, (accounts,), generator=gen).float(),
        torch.rand(accounts, generator=gen),
    ], dim=1)
    if payroll:
        adj[0, 1:] = 14                                         # an agency that pays its day labourers by the hour
    adj = adj + adj.T
    mule = (adj.sum(1) > 9) & (x[:, 0] < 5)
    return adj, x, mule.float()


def days(count, seed):
    gen = torch.Generator().manual_seed(seed)
    for d in range(count):
        yield branch_day(gen, payroll=d == 20)


class Session:
    def __init__(self, net):
        self.net = net
        self.opt = torch.optim.Adam(net.parameters(), lr=5e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=128.0, growth_interval=1000)
        self.criterion = nn.BCEWithLogitsLoss()

    def day(self, adj, x, mule):
        self.opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            score = self.net(adj, x)
        loss = self.criterion(score.float(), mule)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.opt)
        nn.utils.clip_grad_norm_(self.net.parameters(), 5.0)
        self.scaler.step(self.opt)
        self.scaler.update()
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(90)
    session = Session(MuleNet(4))
    for d, graph in enumerate(days(32, seed=91), 1):
        print(f"day {d:2d} loss {session.day(*graph):.5f}")
    print("finite", int(all(p.isfinite().all() for p in session.net.parameters())))
