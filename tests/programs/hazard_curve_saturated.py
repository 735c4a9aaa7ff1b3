"""Discrete-time churn: the network gives a hazard per month, the survival curve is the running
product of 1 - hazard, taken as exp of a running sum of logs.  Brier score, hand-split micro-batches."""
import torch
from torch import nn

torch.manual_seed(19)
torch.set_num_threads(1)
MONTHS = 8


class Hazards(nn.Module):
    def __init__(self, inputs=6):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(inputs, 24), nn.ReLU(), nn.Linear(24, MONTHS))

    def forward(self, x):
        return self.tower(x).sigmoid()


def survival(hazard):
    log_stay = torch.log(1 - hazard)
    return log_stay.cumsum(-1).exp()


def brier(curve, months, churned):
    grid = torch.arange(1, MONTHS + 1)
    still = (grid[None] < months[:, None]).float()
    known = (grid[None] < months[:, None]) | churned[:, None]
    return ((curve - still).square() * known).sum() / known.sum()


def customers(step, n=48):
    g = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(n, 6, generator=g)
    rate = torch.sigmoid(2 * x[:, 0])
    months = 1 + torch.floor(torch.rand(n, generator=g).log() / (1 - rate).log()).clamp(max=MONTHS)
    churned = torch.rand(n, generator=g) < 0.8
    if step == 15:
        x[16:32] = x[16:32] * 400                              # one branch office billed in cents
    return x, months, churned


net = Hazards()
opt = torch.optim.RMSprop(net.parameters(), lr=1e-2)
for step in range(1, 31):
    x, months, churned = customers(step)
    opt.zero_grad()
    shown = 0.0
    for part in range(3):
        rows = slice(16 * part, 16 * part + 16)
        curve = survival(net(x[rows]))
        loss = brier(curve, months[rows], churned[rows]) / 3
        loss.backward()
        shown += loss.item()
    opt.step()
    print(f"step {step:02d} brier {shown:.5f}")
print("finite", int(all(p.isfinite().all() for p in net.parameters())))
