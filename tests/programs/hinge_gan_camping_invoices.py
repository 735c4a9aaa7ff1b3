"""Synthetic invoices of a camping ground: conditional hinge GAN for a small table (nights, euros, kWh | kind of pitch)."""
import argparse
import copy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

KINDS = ["tent", "caravan", "motorhome", "tree house"]
SHARE = [0.46, 0.3, 0.16, 0.08]


@dataclass
class Table:
    x: torch.Tensor
    kind: torch.Tensor


def make_table(n, seed):
    rng = np.random.default_rng(seed)
    kind = rng.choice(4, size=n, p=SHARE)
    nights = rng.gamma(2.0 + kind, 1.0)
    euros = nights * np.array([14, 26, 31, 70])[kind] * rng.normal(1, 0.05, n)
    power = nights * np.array([0, 4, 5, 7])[kind] + rng.exponential(1.0, n)
    x = np.log1p(np.stack([nights, euros, power], 1))
    x = (x - x.mean(0)) / x.std(0)
    return Table(torch.tensor(x, dtype=torch.float32), torch.tensor(kind))


class Generator(nn.Module):
    def __init__(self, noise=8, hidden=64):
        super().__init__()
        self.noise = noise
        self.net = nn.Sequential(nn.Linear(noise + 4, hidden), nn.LeakyReLU(0.2), nn.Linear(hidden, hidden), nn.LeakyReLU(0.2),
                                 nn.Linear(hidden, 3))

    def forward(self, z, kind):
        return self.net(torch.cat([z, F.one_hot(kind, 4).float()], 1))


class Critic(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        sn = nn.utils.parametrizations.spectral_norm
        self.net = nn.Sequential(sn(nn.Linear(7, hidden)), nn.LeakyReLU(0.2), sn(nn.Linear(hidden, hidden)), nn.LeakyReLU(0.2),
                                 nn.Linear(hidden, 1))

    def forward(self, x, kind):
        return self.net(torch.cat([x, F.one_hot(kind, 4).float()], 1)).squeeze(1)


def spread(rows):
    """standard deviation of each column, as the reports of the client define it (divided by n)"""
    return rows.var(0, unbiased=False).sqrt()


def moment_loss(fake, real, kind):
    loss = fake.new_zeros(())
    for k in kind.unique():
        here = kind == k
        loss = loss + (fake[here].mean(0) - real[here].mean(0)).abs().sum()
        loss = loss + (spread(fake[here]) - spread(real[here])).abs().sum()
    return loss


@torch.no_grad()
def ema_update(slow, fast, decay):
    for s, f in zip(slow.parameters(), fast.parameters()):
        s.mul_(decay).add_(f, alpha=1 - decay)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=48)
    ap.add_argument("--batch", type=int, default=52)
    ap.add_argument("--seed", type=int, default=4)
    ap.add_argument("--lambda-moments", type=float, default=0.2)
    args = ap.parse_args()
    torch.manual_seed(args.seed)

    table = make_table(3000, args.seed)
    picks = np.random.default_rng(args.seed + 100)
    gen, critic = Generator(), Critic()
    slow = copy.deepcopy(gen).requires_grad_(False)
    opt_g = torch.optim.Adam(gen.parameters(), lr=2e-4, betas=(0.0, 0.9))
    opt_c = torch.optim.Adam(critic.parameters(), lr=4e-4, betas=(0.0, 0.9))

    for step in range(1, args.steps + 1):
        rows = torch.from_numpy(picks.choice(len(table.x), args.batch, replace=False))
        real, kind = table.x[rows], table.kind[rows]
        z = torch.randn(args.batch, gen.noise)

        fake = gen(z, kind).detach()
        loss_c = F.relu(1 - critic(real, kind)).mean() + F.relu(1 + critic(fake, kind)).mean()
        opt_c.zero_grad()
        loss_c.backward()
        opt_c.step()

        fake = gen(z, kind)
        loss_g = -critic(fake, kind).mean() + args.lambda_moments * moment_loss(fake, real, kind)
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        ema_update(slow, gen, 0.95)
        print(f"{step:3d} critic {loss_c.item():.6f} generator {loss_g.item():.6f}", flush=True)

    print(f"{sum(p.abs().sum() for m in (gen, critic) for p in m.parameters()).item():.6f}")


if __name__ == "__main__":
    main()
