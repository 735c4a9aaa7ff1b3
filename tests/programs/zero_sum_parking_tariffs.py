#!/usr/bin/env python
# City and inspectors: the city spreads tariffs over streets, the union of drivers spreads cars.
# Zero-sum payoff, both sides learn at once, each by gradient steps on its own small network.
import torch
from torch import nn


def make_city(streets=12, contexts=64, seed=21):
    g = torch.Generator().manual_seed(seed)
    payoff = torch.randn(streets, streets, generator=g)
    payoff = 1.5 * payoff / torch.linalg.matrix_norm(payoff, 2)
    weather = torch.randn(contexts, 4, generator=g)
    weather[:, 0] = 1.0
    return payoff, weather


class Side(nn.Module):
    def __init__(self, streets, features=4):
        super().__init__()
        self.table = nn.Linear(features, streets, bias=False)

    def forward(self, w):
        return self.table(w)


def payoff_of(city, drivers, payoff, weather):
    return (city(weather) @ payoff * drivers(weather)).sum(-1).mean()


def play(rounds=64, rate=0.3):
    torch.manual_seed(4)
    payoff, weather = make_city()
    city, drivers = Side(12), Side(12)
    city_opt = torch.optim.SGD(city.parameters(), lr=rate)
    drivers_opt = torch.optim.SGD(drivers.parameters(), lr=rate)
    for r in range(rounds):
        value = payoff_of(city, drivers, payoff, weather)
        regret_city = (payoff @ drivers(weather).T).square().sum(0).mean()
        city_opt.zero_grad()
        drivers_opt.zero_grad()
        value.backward()
        for p in drivers.parameters():
            p.grad.neg_()
        city_opt.step()
        drivers_opt.step()
        print(f"round {r + 1}: value {value.item():+.4f}  regret {regret_city.item():.4f}", flush=True)
    print(f"tariff table {city.table.weight.detach().norm().item():.4f}", flush=True)


if __name__ == "__main__":
    play()
