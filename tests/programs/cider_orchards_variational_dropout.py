"""Yield of cider orchards from a ledger with many empty cells; per-weight variational dropout (local reparametrisation)."""
import io

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F


def ledger_as_csv(rows=400):
    r = np.random.default_rng(2024)
    age, rain, frost, bees = r.uniform(3, 60, rows), r.normal(620, 90, rows), r.poisson(3, rows), r.uniform(0, 4, rows)
    tonnes = 8 + 0.12 * age - 0.0016 * (age - 30) ** 2 + 0.01 * (rain - 620) - 0.5 * frost + bees + r.normal(0, 0.8, rows)
    lines = ["parish,age,rain_mm,frosts,hives,tonnes"]
    for i in range(rows):
        cells = [f"{age[i]:.1f}", f"{rain[i]:.0f}", str(frost[i]), f"{bees[i]:.2f}", f"{tonnes[i]:.2f}"]
        cells = ["" if r.random() < (0.25 if j < 4 else 0.1) else c for j, c in enumerate(cells)]
        lines.append(",".join(["ABCD"[i % 4], *cells]))
    return "\n".join(lines)


class VariationalLinear(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.theta = nn.Parameter(torch.randn(fan_out, fan_in) / fan_in ** 0.5)
        self.bias = nn.Parameter(torch.zeros(fan_out))
        self.log_alpha = nn.Parameter(torch.full((fan_out, fan_in), -3.0))

    def forward(self, x):
        mean = F.linear(x, self.theta, self.bias)
        if not self.training:
            return mean
        var = F.linear(x.square(), self.log_alpha.exp() * self.theta.square())
        return mean + (var + 1e-8).sqrt() * torch.randn_like(mean)

    def kl(self):
        a = self.log_alpha
        return -(0.63576 * torch.sigmoid(1.87320 + 1.48695 * a) - 0.5 * F.softplus(-a) - 0.63576).sum()


class YieldNet(nn.Module):
    def __init__(self, numeric, parishes):
        super().__init__()
        self.fill = nn.Parameter(torch.zeros(numeric))
        self.parish = nn.Embedding(parishes, 4)
        self.first = VariationalLinear(2 * numeric + 4, 32)
        self.second = VariationalLinear(32, 2)

    def forward(self, x, parish):
        gone = x.isnan()
        x = torch.where(gone, self.fill, x)
        h = torch.cat([x, gone.float(), self.parish(parish)], 1)
        mu, rho = self.second(torch.relu(self.first(h))).unbind(1)
        return mu, 2 * torch.tanh(rho / 2) - 1


torch.manual_seed(77)
frame = pd.read_csv(io.StringIO(ledger_as_csv()))
frame["parish"] = frame["parish"].astype("category").cat.codes
numeric = frame.drop(columns="parish")
numeric = (numeric - numeric.mean()) / numeric.std()
table = torch.tensor(numeric.to_numpy(), dtype=torch.float32)
features, target, parish = table[:, :4], table[:, 4], torch.tensor(frame["parish"].to_numpy(), dtype=torch.long)
print("empty cells:", int(frame.isna().sum().sum()))

net = YieldNet(4, 4)
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
step = 0
for epoch in range(5):
    for rows in torch.randperm(len(table)).split(50):
        step += 1
        mu, log_s = net(features[rows], parish[rows])
        known = target[rows] == target[rows]
        residual = (torch.where(known, target[rows], 0.0) - mu) / log_s.exp()
        score = torch.where(known, 0.5 * residual.square() + log_s, 0.0)
        beta = min(1.0, epoch / 4)
        complexity = beta * (net.first.kl() + net.second.kl()) / len(table)
        loss = score.sum() / known.sum() + complexity
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"epoch {epoch} step {step} elbo loss {loss.item():+.4f} complexity {complexity.item():.4f}")
print("sum |w| =", sum(p.detach().abs().sum().item() for p in net.parameters()))
