"""Energy model of reef fish positions (2-D), persistent contrastive divergence with Langevin chains."""
import math
import torch
from torch import nn

CONFIG = dict(
    chains=64, langevin=12, steps=40, lr=2e-3, noise=0.05,
    # step size of the chains by phase: explore, then mix faster
    eps=[(1, 0.01), (12, 0.03), (22, 3.0)],
    energy_l2=0.02,
)


class ReefEnergy(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(2, width), nn.Softplus(), nn.Linear(width, width), nn.Softplus())
        self.head = nn.Linear(width, 1)
        self.register_buffer("wall", torch.tensor(0.15))

    def forward(self, x):
        # quartic wall keeps the chains on the reef
        r2 = x.square().sum(-1)
        wall = self.wall * r2 * r2
        return self.head(self.features(x)).squeeze(-1) + wall


def eps_at(step):
    return [e for start, e in CONFIG["eps"] if step >= start][-1]


def langevin(energy, x, eps, k, gen):
    for _ in range(k):
        x = x.detach().requires_grad_()
        grad, = torch.autograd.grad(energy(x).sum(), x)
        x = x - eps * grad + CONFIG["noise"] * math.sqrt(eps) * torch.randn(x.shape, generator=gen)
    return x.detach()


def fish(gen, n):
    angle = 2 * math.pi * torch.rand(n, generator=gen)
    ring = torch.stack([angle.cos(), angle.sin()], -1) * 1.5
    return ring + 0.1 * torch.randn(n, 2, generator=gen)


class PCD:
    def __init__(self):
        torch.manual_seed(31)
        self.gen = torch.Generator().manual_seed(310)
        self.energy = ReefEnergy()
        self.opt = torch.optim.Adam(self.energy.parameters(), lr=CONFIG["lr"], betas=(0.5, 0.9))
        self.chains = 2 * torch.randn(CONFIG["chains"], 2, generator=self.gen)

    def step(self, i):
        pos = fish(self.gen, CONFIG["chains"])
        fresh = torch.randperm(CONFIG["chains"], generator=self.gen)[:4]     # a few chains start anew
        self.chains[fresh] = 2 * torch.randn(4, 2, generator=self.gen)
        for p in self.energy.parameters():
            p.requires_grad_(False)
        self.chains = langevin(self.energy, self.chains, eps_at(i), CONFIG["langevin"], self.gen)
        for p in self.energy.parameters():
            p.requires_grad_(True)
        e_pos, e_neg = self.energy(pos), self.energy(self.chains)
        gap = e_pos.mean() - e_neg.mean()
        loss = gap + CONFIG["energy_l2"] * (e_pos.square().mean() + e_neg.square().mean())
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item(), gap.item()


def main():
    run = PCD()
    for i in range(1, CONFIG["steps"] + 1):
        loss, gap = run.step(i)
        print(f"iter {i:2d} eps {eps_at(i):.2f} loss {loss:+.6f} gap {gap:+.6f}")
    print("energy weights", float(sum(p.detach().double().sum() for p in run.energy.parameters())))


if __name__ == "__main__":
    main()
