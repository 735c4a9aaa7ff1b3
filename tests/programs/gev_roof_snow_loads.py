# Annual maxima of the snow load on roofs: GEV with covariates, minibatches of station-years.
# usage: python gev_roof_snow_loads.py [lr=...] [epochs=...]
import sys

import torch

opts = {"lr": 0.03, "epochs": 2, "batch": 20, "seed": 77}
for arg in sys.argv[1:]:
    k, v = arg.split("=")
    opts[k] = type(opts[k])(v)
torch.manual_seed(opts["seed"])


def station_years(stations=20, years=40):
    altitude = torch.rand(stations) * 2.0                      # km
    coast = torch.rand(stations)
    X, y = [], []
    for year in range(years):
        u = torch.rand(stations).clamp(1e-4, 1 - 1e-4)
        mu, sigma, xi = 0.8 + 0.9 * altitude, 0.25 + 0.1 * altitude - 0.1 * coast, -0.3
        load = mu + sigma / xi * ((-torch.log(u)) ** (-xi) - 1)
        X.append(torch.stack([altitude - 1, coast - 0.5, torch.full_like(coast, year / years - 0.5)], 1))
        y.append(load)
    X, y = torch.cat(X), torch.cat(y)
    y[31 * stations + 6] = 6.9          # February 1999, station 6; confirmed by the observer
    return X, y


class Heads(torch.nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.trunk = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Tanh())
        self.location = torch.nn.Linear(width, 1)
        self.scale = torch.nn.Linear(width, 1)
        self.shape = torch.nn.Parameter(torch.tensor(0.3))
        torch.nn.init.constant_(self.location.bias, 1.5)

    def forward(self, X):
        h = self.trunk(X)
        return self.location(h)[:, 0], torch.nn.functional.softplus(self.scale(h)[:, 0]), 0.5 * torch.tanh(self.shape)


def gev_nll(y, mu, sigma, xi):
    z = (y - mu) / sigma
    log_t = torch.log1p(xi * z) / xi
    return (torch.log(sigma) + (1 + xi) * log_t + torch.exp(-log_t)).mean()


X, y = station_years()
model = Heads()
optimizer = torch.optim.Adam([
    {"params": model.trunk.parameters()},
    {"params": [*model.location.parameters(), *model.scale.parameters()]},
    {"params": [model.shape], "lr": 2 * opts["lr"]},
], lr=opts["lr"])

it = 0
for epoch in range(opts["epochs"]):
    for lo in range(0, len(y), opts["batch"]):
        it += 1
        xb, yb = X[lo:lo + opts["batch"]], y[lo:lo + opts["batch"]]
        loss = gev_nll(yb, *model(xb))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("epoch %d it %d nll %.5f xi %.4f" % (epoch, it, loss.item(), 0.5 * torch.tanh(model.shape).item()), flush=True)

print("%.6f" % sum(float(p.detach().abs().sum()) for p in model.parameters()))
