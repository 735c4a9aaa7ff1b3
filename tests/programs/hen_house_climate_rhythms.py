"""Hen-house climate: a recogniser stepped every round, a slow decoder stepped every fourth round with summed gradients.

The density is continuous and the noise small, so the loss becomes negative.  Sensors that are not in a house
are NaN in the table and are left out by a mask.
"""
import logging
import sys
from dataclasses import dataclass

import torch
from torch import nn

logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
log = logging.getLogger("hens")


@dataclass
class Config:
    rounds: int = 40
    slow_every: int = 4
    batch: int = 24
    sensors: int = 7
    latent: int = 3
    seed: int = 9041


class Recogniser(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * c.sensors, 32), nn.SiLU(), nn.Linear(32, 2 * c.latent))

    def forward(self, x, present):
        mean, logvar = self.body(torch.cat([x, present.float()], 1)).chunk(2, 1)
        return mean, logvar.clamp(-8, 4)


class SlowDecoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(c.latent, 24), nn.Tanh(), nn.Linear(24, c.sensors))
        self.logstd = nn.Parameter(torch.full((c.sensors,), -0.5))

    def forward(self, z):
        return self.net(z), self.logstd


def table(c, g):
    mix = torch.randn(c.latent, c.sensors, generator=g) * 0.5
    z = torch.randn(600, c.latent, generator=g)
    rows = torch.tanh(z @ mix) * 0.4 + 0.02 * torch.randn(600, c.sensors, generator=g)
    rows[torch.rand(rows.shape, generator=g) < 0.2] = float("nan")
    rows[:, 6] = float("nan")             # the ammonia probe was ordered and never came
    return rows


def elbo(rec, dec, rows, g, beta):
    present = ~torch.isnan(rows)
    x = torch.nan_to_num(rows, nan=0.0)
    mean, logvar = rec(x, present)
    z = mean + (0.5 * logvar).exp() * torch.randn(mean.shape, generator=g)
    out, logstd = dec(z)
    err = 0.5 * ((x - out) / logstd.exp()) ** 2 + logstd
    nll = torch.where(present, err, torch.zeros_like(err)).sum(1).mean()
    kl = 0.5 * (mean ** 2 + logvar.exp() - 1 - logvar).sum(1).mean()
    per_sensor = torch.where(present, err, rows).nanmean(0)     # NaN for the probe that never came
    return nll + beta * kl, per_sensor.detach()


def main():
    c = Config()
    torch.manual_seed(c.seed)
    g = torch.Generator().manual_seed(c.seed)
    data = table(c, g)
    rec, dec = Recogniser(c), SlowDecoder(c)
    fast = torch.optim.Adam(rec.parameters(), lr=5e-3)
    slow = torch.optim.RMSprop(dec.parameters(), lr=2e-2)
    for r in range(1, c.rounds + 1):
        rows = data[torch.randint(0, len(data), (c.batch,), generator=g)]
        beta = 0.05 if r <= 20 else 0.4   # second phase: pay for the code, the loss jumps up
        loss, per_sensor = elbo(rec, dec, rows, g, beta)
        fast.zero_grad()
        loss.backward()
        fast.step()
        if r % c.slow_every == 0:
            for p in dec.parameters():
                if p.grad is not None:
                    p.grad.div_(c.slow_every)
            slow.step()
            slow.zero_grad()
        log.info("round %d loss %.6f sensors %s", r, loss.item(), " ".join(f"{v:.3f}" for v in per_sensor.tolist()))
        sys.stdout.flush()
    total = sum(p.abs().sum().item() for m in (rec, dec) for p in m.parameters())
    log.info("weights %.6f", total)


if __name__ == "__main__":
    main()
