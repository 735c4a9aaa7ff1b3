import math

import torch

config = {
    "stars": 24,
    "nodes": 16,
    "steps": 40,
    "lr": 0.12,
    "prior_scale": 1.5,
    "seed": 2016,
}


def catalogue(cfg):
    """Observed parallaxes in mas; faint sources may well come out negative."""
    g = torch.Generator().manual_seed(cfg["seed"])
    true = torch.rand(cfg["stars"], generator=g) * 3 + 0.4
    error = 0.15 + 0.2 * torch.rand(cfg["stars"], generator=g)
    seen = true + error * torch.randn(cfg["stars"], generator=g)
    seen[17], error[17] = -1.9, 0.4
    return seen, error


def normal_cdf(z):
    return 0.5 * (1 + torch.erf(z / math.sqrt(2)))


class Posterior(torch.nn.Module):
    """One normal per star, cut off at zero, evaluated on fixed quantiles."""

    def __init__(self, stars, nodes):
        super().__init__()
        self.mu = torch.nn.Parameter(torch.full((stars, 1), 1.0))
        self.log_sigma = torch.nn.Parameter(torch.full((stars, 1), -0.7))
        self.register_buffer("u", (torch.arange(nodes) + 0.5).unsqueeze(0) / nodes)

    def forward(self):
        sigma = self.log_sigma.exp()
        below = normal_cdf(-self.mu / sigma)
        level = below + self.u * (1 - below)
        z = math.sqrt(2) * torch.erfinv(2 * level - 1)
        log_q = -0.5 * z ** 2 - self.log_sigma - 0.5 * math.log(2 * math.pi) - torch.log1p(-below)
        return self.mu + sigma * z, log_q


def elbo(q, seen, error, cfg):
    parallax, log_q = q()
    fit = -0.5 * ((seen[:, None] - parallax) / error[:, None]) ** 2 - torch.log(error)[:, None]
    prior = -parallax / cfg["prior_scale"] - math.log(cfg["prior_scale"])
    return (fit + prior - log_q).mean(1).sum()


def fit(cfg):
    torch.manual_seed(cfg["seed"])
    seen, error = catalogue(cfg)
    q = Posterior(cfg["stars"], cfg["nodes"])
    climber = torch.optim.Adam(q.parameters(), lr=cfg["lr"], maximize=True)
    for step in range(1, cfg["steps"] + 1):
        climber.zero_grad()
        bound = elbo(q, seen, error, cfg)
        bound.backward()
        climber.step()
        print(f"{step:3d}  elbo {bound.item():10.4f}")
    print("sum of |mu| and |log sigma|: %.5f" % (q.mu.abs().sum() + q.log_sigma.abs().sum()).item())


fit(config)
