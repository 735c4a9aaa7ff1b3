import math

import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR


def bulb_register(n, g):
    """Voltage, switchings per day, glass temperature -> kilohours burnt, and whether it still burnt at the last visit."""
    x = torch.randn(n, 3, generator=g)
    centre = 0.3 - 0.4 * x[:, 0] - 0.2 * x[:, 1]
    hours = torch.exp(centre + 0.5 * torch.randn(n, generator=g))
    visit = 1.0 + 3 * torch.rand(n, generator=g)
    hours[FIRE_STATION], visit[FIRE_STATION] = 1010.0, 1100.0  # hung in 1901
    return x, torch.minimum(hours, visit), hours > visit


FIRE_STATION = 263


class LogNormalLife(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(3, width), nn.GELU())
        self.location = nn.Linear(width, 1)
        self.spread = nn.Linear(width, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.location(h).squeeze(-1), nn.functional.softplus(self.spread(h)).squeeze(-1) + 0.3


class CensoredNLL(nn.Module):
    """Density for bulbs seen failing, survival probability for those still burning."""

    def forward(self, mu, sigma, hours, alive):
        z = (hours.log() - mu) / sigma
        failed = -0.5 * z * z - sigma.log() - hours.log() - 0.5 * math.log(2 * math.pi)
        beyond = 1 - 0.5 * (1 + torch.erf(z / math.sqrt(2)))
        still_on = torch.log(beyond)
        return -torch.where(alive, still_on, failed).mean()


class Fitter:
    def __init__(self, epochs=2, batch=16, bulbs=320):
        self.gen = torch.Generator().manual_seed(77)
        self.x, self.hours, self.alive = bulb_register(bulbs, self.gen)
        self.batch, self.epochs, self.count = batch, epochs, 0
        self.net, self.nll = LogNormalLife(), CensoredNLL()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.plan = OneCycleLR(self.opt, max_lr=0.02, total_steps=epochs * bulbs // batch)

    def batches(self):
        # the ledger is read front to back, then in random order
        first = torch.arange(len(self.x))
        for epoch in range(self.epochs):
            order = first if epoch == 0 else torch.randperm(len(self.x), generator=self.gen)
            yield from order.split(self.batch)

    def fit(self):
        for pick in self.batches():
            self.count += 1
            mu, sigma = self.net(self.x[pick])
            loss = self.nll(mu, sigma, self.hours[pick], self.alive[pick])
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), max_norm=5.0)
            self.opt.step()
            self.plan.step()
            print(f"{self.count:3d} nll {loss.item():8.4f} median life {mu.exp().median().item():.3f} kh")
        return self.net


if __name__ == "__main__":
    torch.manual_seed(2)
    net = Fitter().fit()
    print("weights squared:", float(sum((p.detach() ** 2).sum() for p in net.parameters())))
