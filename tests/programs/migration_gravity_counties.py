# Gravity model of moves between counties, fitted by the Poisson deviance, one county of origin at a time.
import numpy as np
import pandas as pd
import torch
from torch import nn

COUNTIES = 36


def census(seed=1891):
    rng = np.random.default_rng(seed)
    place = pd.DataFrame({
        "county": [f"c{i:02d}" for i in range(COUNTIES)],
        "x": rng.uniform(0, 10, COUNTIES),
        "y": rng.uniform(0, 10, COUNTIES),
        "people": rng.lognormal(3.0, 0.8, COUNTIES).round(1),
    })
    place.loc[22, "people"] = 0.0        # lighthouse rock, evacuated before the count
    place["jobs"] = rng.lognormal(0.0, 0.4, COUNTIES)
    moves = place.merge(place, how="cross", suffixes=("_from", "_to"))
    moves = moves[moves.county_from != moves.county_to].copy()
    moves["km"] = np.hypot(moves.x_from - moves.x_to, moves.y_from - moves.y_to) + 0.5
    rate = 0.2 * moves.people_from * (moves.jobs_to ** 0.8) * moves.km ** -1.1
    moves["movers"] = rng.poisson(rate).astype(float)
    return moves


class Gravity(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(-1.0))
        self.friction = nn.Parameter(torch.tensor(0.5))
        self.pull = nn.Sequential(nn.Linear(1, 6), nn.Softplus(), nn.Linear(6, 1))

    def forward(self, people, jobs, km):
        attraction = self.pull(jobs.log().unsqueeze(-1)).squeeze(-1)
        return people * torch.exp(self.scale + attraction - self.friction * km.log())


class PoissonDeviance(nn.Module):
    def forward(self, expected, counted):
        saturated = torch.xlogy(counted, counted) - counted
        reached = torch.xlogy(counted, expected) - expected
        return 2 * (saturated - reached).mean()


def columns(frame, *names):
    return [torch.tensor(frame[n].to_numpy(), dtype=torch.float32) for n in names]


def fit():
    torch.manual_seed(5)
    moves = census()
    model, deviance = Gravity(), PoissonDeviance()
    opt = torch.optim.Adamax(model.parameters(), lr=0.04)
    for n, (origin, frame) in enumerate(moves.groupby("county_from", sort=True), 1):
        people, jobs, km, movers = columns(frame, "people_from", "jobs_to", "km", "movers")
        opt.zero_grad()
        loss = deviance(model(people, jobs, km), movers)
        loss.backward()
        opt.step()
        print(n, origin, "deviance", f"{loss.item():.4f}", "movers", int(movers.sum()))
    return model


if __name__ == "__main__":
    m = fit()
    print("sum of |weights|", f"{sum(p.abs().sum().item() for p in m.parameters()):.5f}")
