"""Experience rating of fleets.

A small net gives each fleet-year an a-priori cost; the residual experience is blended in with the credibility
of Buehlmann (1967):  Z = n / (n + k),  k = (variance within a fleet) / (variance between fleets).
Everything is differentiable, so the net learns what the experience does not tell.
"""
import numpy as np
import pandas as pd
import torch

YEARS, FLEETS, REGIONS = 6, 10, 28
rng = np.random.default_rng(1967)
torch.manual_seed(1967)


def portfolio():
    frames = []
    for region in range(REGIONS):
        quality = rng.normal(0, 0.9, FLEETS)
        vehicles = rng.integers(8, 120, FLEETS)
        mileage = rng.normal(0, 1, (FLEETS, YEARS))
        noise = rng.normal(0, 0.45, (FLEETS, YEARS))
        if region == 18:
            # a pool: the members share their claims, year by year
            shared = rng.normal(0, 1.2, YEARS)
            quality, vehicles = np.zeros(FLEETS), np.full(FLEETS, 40)
            mileage, noise = np.tile(mileage[:1], (FLEETS, 1)), np.tile(shared, (FLEETS, 1))
        cost = 2.0 + 0.5 * mileage + quality[:, None] + noise
        frames.append(pd.DataFrame({
            "region": region,
            "fleet": np.repeat(np.arange(FLEETS), YEARS),
            "year": np.tile(np.arange(YEARS), FLEETS),
            "vehicles": np.repeat(vehicles, YEARS),
            "mileage": mileage.ravel(),
            "cost": cost.ravel(),
        }))
    return pd.concat(frames, ignore_index=True)


class APriori(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(2, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))

    def forward(self, x):
        return self.body(x)[..., 0]


def credibility(residuals):
    """residuals: fleets x years -> the credible part of the mean of each fleet"""
    n = residuals.shape[1]
    means = residuals.mean(dim=1)
    within = residuals.var(dim=1).mean()
    between = (means.var() - within / n).clamp(min=0)
    k = within / between
    z = n / (n + k)
    return z * means + (1 - z) * means.mean(), z


def main():
    table = portfolio()
    net = APriori()
    optimizer = torch.optim.Adamax(net.parameters(), lr=0.02)
    for step, (region, part) in enumerate(table.groupby("region"), 1):
        x = torch.tensor(np.stack([part.mileage, np.log(part.vehicles) - 4], 1), dtype=torch.float32)
        y = torch.tensor(part.cost.to_numpy(), dtype=torch.float32).view(FLEETS, YEARS)
        prior = net(x).view(FLEETS, YEARS)
        # the last year is to be predicted from the years before
        credible, z = credibility(y[:, :-1] - prior[:, :-1])
        premium = prior[:, -1] + credible
        loss = torch.nn.functional.smooth_l1_loss(premium, y[:, -1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("region %02d  Z=%.4f  loss=%.7f" % (region, z.item(), loss.item()))
    print("final %.6f" % sum(p.abs().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
