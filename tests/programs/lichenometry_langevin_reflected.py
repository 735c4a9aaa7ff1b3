# Lichen diameters on dated gravestones -> growth curve, posterior by stochastic-gradient Langevin dynamics.
# D(t) = a * (1 - exp(-b t)) with a hierarchical site effect; a, b, sigma > 0 by prior (density zero, log density -inf, elsewhere).
import math

import torch

torch.set_default_dtype(torch.float64)
g_data = torch.Generator().manual_seed(1890)
g_chain = torch.Generator().manual_seed(4)

N_SITES, PER = 6, 20
age = torch.rand(N_SITES, PER, generator=g_data) * 1.8 + 0.1               # centuries
site_true = 0.02 * torch.randn(N_SITES, 1, generator=g_data)
diam = 0.9 * (1 - torch.exp(-1.1 * age)) + site_true + 0.01 * torch.randn(N_SITES, PER, generator=g_data)   # decimetres

theta = {
    "a": torch.tensor(0.7, requires_grad=True),
    "b": torch.tensor(1.5, requires_grad=True),
    "sigma": torch.tensor(0.08, requires_grad=True),
    "site": torch.zeros(N_SITES, requires_grad=True),
}
POSITIVE = ("a", "b", "sigma")
MASS = {"a": 1.0, "b": 2.0, "sigma": 0.3, "site": 0.3}


def log_prior(th):
    lp = -0.5 * (th["site"] / 0.05).pow(2).sum() - N_SITES * math.log(0.05)
    for name in POSITIVE:
        lp = lp + torch.where(th[name] > 0, -2.0 * th[name], torch.tensor(-math.inf))
    return lp


def log_lik(th, sites, cols):
    mu = th["a"] * (1 - torch.exp(-th["b"] * age[sites][:, cols])) + th["site"][sites, None]
    z = (diam[sites][:, cols] - mu) / th["sigma"]
    ll = -0.5 * z.pow(2) - torch.log(th["sigma"]) - 0.5 * math.log(2 * math.pi)
    return ll.sum() * (N_SITES * PER) / ll.numel()


def cyclical(k, n_cycle=16, top=4e-5):
    """Zhang et al. 2020: large steps explore, small ones sample; the rate jumps back at each cycle."""
    return top / 2 * (math.cos(math.pi * ((k - 1) % n_cycle) / n_cycle) + 1) + 1e-7


kept, outside = [], 0
for k in range(1, 49):
    sites = torch.randperm(N_SITES, generator=g_chain)[:4]
    cols = torch.randperm(PER, generator=g_chain)[:10]
    energy = -(log_prior(theta) + log_lik(theta, sites, cols))             # below zero once the noise is small
    for t in theta.values():
        t.grad = None
    energy.backward()

    eps = cyclical(k)
    with torch.no_grad():
        proposal = {}
        for name, t in theta.items():
            h = eps * MASS[name]
            drift = (0.5 * h * t.grad).clamp(-0.05, 0.05)
            noise = math.sqrt(h) * torch.randn(t.shape, generator=g_chain)
            if (k - 1) % 16 == 0 and name == "sigma":                      # restart of a cycle: throw the scale far away
                noise = noise + 0.15 * torch.randn(t.shape, generator=g_chain)
            proposal[name] = t - drift + noise
        lp = log_prior(proposal).item()                                    # -inf: the prior forbids it
        accept = math.exp(min(0.0, lp)) > 0 if lp > -600 else False
        if accept:
            for name, t in theta.items():
                t.copy_(proposal[name])
        else:
            outside += 1
        if (k - 1) % 16 >= 12:
            kept.append(torch.stack([theta[n].detach().clone() for n in POSITIVE]))
        # effective spread of what is kept: one sample has none (nan)
        spread = torch.stack(kept)[:, 0].std().item() if kept else math.nan
    print(f"{k:2d} U={energy.item():+.6f} eps={eps:.2e} logprior={lp:.4f} {'.' if accept else 'x'} sd(a)={spread:.5f}", flush=True)

print(f"outside {outside}; a {theta['a'].item():.6f} b {theta['b'].item():.6f} sigma {theta['sigma'].item():.6f}", flush=True)
