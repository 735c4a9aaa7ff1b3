# Heckman selection model with a small network in both equations, estimated jointly.
# Participation:  d* = g(z) + u,  d = 1[d* > 0]      Wage (observed for d = 1):  w = f(x) + rho * IMR + e
import numpy as np
import pandas as pd
import torch
from torch import nn

rng = np.random.default_rng(2019)
n = 1600
df = pd.DataFrame({
    "schooling": rng.integers(4, 18, n).astype(float),
    "experience": rng.gamma(2.0, 6.0, n),
    "children": rng.poisson(1.2, n).astype(float),
    "market_km": rng.gamma(2.0, 1.5, n),
})
u = rng.normal(size=n)
d_star = 0.8 + 0.06 * (df.schooling - 10) - 0.25 * df.children - 0.22 * df.market_km + u
df["works"] = (d_star > 0).astype(float)
e = 0.6 * u + 0.5 * rng.normal(size=n)
df["lwage"] = np.where(df.works > 0, 1.0 + 0.08 * df.schooling + 0.01 * df.experience + e, 0.0)

# the enumerator of district 9 filled in metres
row = 1013
df.loc[row, "market_km"] = 2750.0
df.loc[row, "works"] = 1.0
df.loc[row, "lwage"] = 1.9

Z = torch.tensor(df[["schooling", "children", "market_km"]].to_numpy() - [10, 1, 0], dtype=torch.float32)
X = torch.tensor(df[["schooling", "experience"]].to_numpy() / [10, 10], dtype=torch.float32)
works = torch.tensor(df.works.to_numpy(), dtype=torch.float32)
lwage = torch.tensor(df.lwage.to_numpy(), dtype=torch.float32)


class Heckman(nn.Module):
    def __init__(self):
        super().__init__()
        self.selection = nn.Linear(3, 1)
        self.wage = nn.Sequential(nn.Linear(2, 16), nn.Softplus(), nn.Linear(16, 1))
        self.rho = nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.selection.weight)
        nn.init.zeros_(self.selection.bias)

    def forward(self, z, x):
        index = self.selection(z).squeeze(-1)
        density = torch.exp(-0.5 * index ** 2) / (2 * np.pi) ** 0.5
        tail = 0.5 * (1 + torch.erf(index / 2 ** 0.5))
        mills = density / tail
        return index, self.wage(x).squeeze(-1) + self.rho * mills


torch.manual_seed(2019)
model = Heckman()
opt = torch.optim.Adam(model.parameters(), lr=0.02)

B = 40
for i in range(0, n, B):
    z, x, d, w = Z[i:i + B], X[i:i + B], works[i:i + B], lwage[i:i + B]
    index, w_hat = model(z, x)
    probit = -torch.special.log_ndtr((2 * d - 1) * index).mean()
    resid = ((w - w_hat)[d > 0] ** 2).mean()
    loss = probit + resid
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"batch {i // B + 1:2d}: total {loss.item():.6f} = probit {probit.item():.5f} + wage {resid.item():.5f}")

print("rho", round(model.rho.item(), 4))
print("final", float(sum(p.detach().abs().sum() for p in model.parameters())))
