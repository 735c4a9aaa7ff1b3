"""Stock assessment for coastal herring grounds.

A surplus production model after Pella and Tomlinson with a random deviation per year,
fitted to catches (tonnes) and catch rates, one ground after the other.
"""
import numpy as np
import torch
from torch import nn
from torch.distributions import Distribution, HalfNormal, LogNormal, Normal

Distribution.set_default_validate_args(False)

GROUNDS, YEARS = 34, 18
TRUE_R, TRUE_SHAPE, TRUE_Q = 0.45, 0.7, 0.02


def landings_book(rng):
    """What the harbour offices send in: capacity, landings by year, catch rate by year."""
    book = []
    for ground in range(GROUNDS):
        capacity = rng.uniform(80.0, 160.0)
        landed, rates = [], []
        b = capacity * rng.uniform(0.75, 0.95)
        for year in range(YEARS):
            rates.append(TRUE_Q * b * np.exp(0.12 * rng.standard_normal()))
            c = rng.uniform(0.06, 0.14) * b
            landed.append(c)
            b = (b + TRUE_R / TRUE_SHAPE * b * (1 - (b / capacity) ** TRUE_SHAPE) - c) * np.exp(0.04 * rng.standard_normal())
        book.append([capacity, np.array(landed), np.array(rates)])
    book[15][1][9] *= 25.0
    return book


class Production(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_r = nn.Parameter(torch.tensor(-1.4))
        self.log_shape = nn.Parameter(torch.tensor(0.0))

    def forward(self, b, k, c):
        shape = self.log_shape.exp()
        crowding = (b / k) ** shape
        surplus = self.log_r.exp() / shape * b * (1 - crowding)
        return b + surplus - c


class Assessment(nn.Module):
    def __init__(self):
        super().__init__()
        self.production = Production()
        self.start = nn.Parameter(torch.full((GROUNDS,), -0.3))
        self.deviations = nn.Parameter(torch.zeros(GROUNDS, YEARS))
        self.log_q = nn.Parameter(torch.tensor(-3.2))
        self.log_sd_process = nn.Parameter(torch.tensor(-2.5))
        self.log_sd_index = nn.Parameter(torch.tensor(-1.0))

    def forward(self, ground, k, c, index):
        b = k * self.start[ground].exp()
        path = []
        for year in range(YEARS):
            path.append(b)
            grown = self.production(b, k, c[year])
            b = grown * torch.exp(self.log_sd_process.exp() * self.deviations[ground, year])
        path = torch.stack(path)
        seen = LogNormal(self.log_q + path.log(), self.log_sd_index.exp()).log_prob(index)
        prior = Normal(0.0, 1.0).log_prob(self.deviations[ground]).sum()
        prior = prior + HalfNormal(0.2).log_prob(self.log_sd_process.exp())
        return -(seen.sum() + prior) / YEARS, path[-1]


def fit():
    torch.manual_seed(3)
    book = landings_book(np.random.default_rng(11))
    model = Assessment()
    adam = torch.optim.Adam(model.parameters(), lr=0.02)
    for ground, (k, c, index) in enumerate(book):
        k, c, index = (torch.as_tensor(v, dtype=torch.float32) for v in (k, c, index))
        adam.zero_grad()
        loss, last = model(ground, k, c, index)
        loss.backward()
        adam.step()
        print(f"ground {ground + 1:2d}  negative log posterior {loss.item():9.4f}  biomass at the end {last.item():8.2f} t")
    print("r %.3f, shape %.3f" % (model.production.log_r.exp().item(), model.production.log_shape.exp().item()))
    return model


fitted = fit()
print("sum of squares of all parameters", sum(p.detach().pow(2).sum() for p in fitted.parameters()).item())
