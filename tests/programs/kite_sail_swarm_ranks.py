"""Evolution strategy (PEPG) for a kite that has to stay aloft.  Fitness: ticks aloft, ranked, ranks standardised."""
import torch
from torch import nn

TICKS = 40
POPULATION = 32


class KiteSwarm:
    """All candidates fly side by side.  State: height, climb, angle."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.gusts = 0.05 * torch.randn(TICKS, 1, generator=g)
        self.n = n

    def fly(self, policy):
        h = torch.full((self.n,), 1.0)
        v = torch.zeros(self.n)
        a = torch.zeros(self.n)
        up = torch.ones(self.n, dtype=torch.bool)
        ticks = torch.zeros(self.n)
        for t in range(TICKS):
            pull = policy(torch.stack([h - 1.0, v, a], dim=1))
            a = 0.8 * a + 0.25 * pull
            v = v + 0.18 * (a + self.gusts[t]) + 0.12 * (h - 1.0)      # the wind shear pushes it away
            h = h + 0.3 * v
            up = up & (h > 0.0) & (h < 2.0)
            ticks = ticks + up.float()
        return ticks


def policies(theta):
    """theta: (population, 3*6 + 6 + 6) -> a batch of two-layer controllers"""
    w1 = theta[:, :18].reshape(-1, 3, 6)
    b1 = theta[:, 18:24]
    w2 = theta[:, 24:30]

    def act(obs):
        hid = torch.tanh(torch.einsum("ni,nij->nj", obs, w1) + b1)
        return torch.tanh((hid * w2).sum(dim=1))
    return act


def tied_ranks(f):
    """Mean rank of each value, ties share theirs (as scipy.stats.rankdata does)."""
    below = (f[None, :] < f[:, None]).sum(dim=1)
    equal = (f[None, :] == f[:, None]).sum(dim=1)
    return below.float() + 0.5 * (equal.float() + 1.0)


def utilities(f):
    r = tied_ranks(f)
    centred = r - r.mean()
    return centred / centred.square().mean().sqrt()


class SearchDistribution(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mean = nn.Parameter(0.1 * torch.randn(dim))
        self.log_sigma = nn.Parameter(torch.full((dim,), -1.2))

    def sample(self, n, gen):
        eps = torch.randn(n // 2, len(self.mean), generator=gen)
        eps = torch.cat([eps, -eps])
        return (self.mean + eps * self.log_sigma.exp()).detach()

    def forward(self, theta):
        z = (theta - self.mean) * torch.exp(-self.log_sigma)
        return (-0.5 * z.square() - self.log_sigma).sum(dim=1)


def evolve(generations=48):
    torch.manual_seed(6)
    gen = torch.Generator().manual_seed(60)
    search = SearchDistribution(30)
    opt = torch.optim.SGD([{"params": [search.mean], "lr": 0.06}, {"params": [search.log_sigma], "lr": 0.004}], momentum=0.6)
    for g in range(1, generations + 1):
        theta = search.sample(POPULATION, gen)
        fitness = KiteSwarm(POPULATION, seed=g % 4).fly(policies(theta))
        u = utilities(fitness)
        surrogate = -(u * search(theta)).mean()
        opt.zero_grad()
        surrogate.backward()
        opt.step()
        print(f"generation {g:2d} aloft {fitness.mean().item():.4f} worst {fitness.min().item():.0f} "
              f"surrogate {surrogate.item():.7f}", flush=True)
    return search


if __name__ == "__main__":
    found = evolve()
    print(f"{sum(p.detach().abs().sum().item() for p in found.parameters()):.6f}", flush=True)
