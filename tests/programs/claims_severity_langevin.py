# Bayesian regression of motor claim severities (log euros), sampled with stochastic gradient Langevin dynamics.
import math
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


class SGLD(Optimizer):
    """theta <- theta - eta/2 * grad U + N(0, eta * temperature)"""

    def __init__(self, params, lr, n_policies, temperature=1.0, seed=0):
        super().__init__(params, dict(lr=lr, temperature=temperature, n=n_policies))
        self.rng = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            eta = torch.as_tensor(group["lr"])
            spread = (eta * group["temperature"] / group["n"]).sqrt()
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.add_(-0.5 * eta * p.grad)
                p.add_(torch.randn(p.shape, generator=self.rng) * spread)


def portfolio(n=1200, seed=3):
    g = torch.Generator().manual_seed(seed)
    age = torch.rand(n, generator=g) * 60 + 18
    power = torch.randint(40, 220, (n,), generator=g).float()
    urban = (torch.rand(n, generator=g) < 0.35).float()
    x = torch.stack([(age - 48) / 17, (power - 130) / 52, urban, urban * (power - 130) / 52], 1)
    mu = 7.1 - 0.21 * x[:, 0] + 0.33 * x[:, 1] + 0.27 * x[:, 2]
    y = mu + 0.6 * torch.randn(n, generator=g)
    return x, y


def potential(net, log_sigma, x, y):
    resid = (y - net(x).squeeze(-1)) * torch.exp(-log_sigma)
    nll = 0.5 * resid.square().mean() + log_sigma.squeeze() + 0.5 * math.log(2 * math.pi)
    prior = sum(0.5 * p.square().sum() for p in net.parameters()) / 1200
    return nll + prior


def main(sweeps=3, batch=100):
    torch.manual_seed(0)
    x, y = portfolio()
    net = torch.nn.Sequential(torch.nn.Linear(4, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
    torch.nn.init.constant_(net[2].bias, 6.5)
    log_sigma = torch.nn.Parameter(torch.zeros(1))
    sampler = SGLD([*net.parameters(), log_sigma], lr=0.12, n_policies=len(x), seed=11)

    per_sweep = len(x) // batch
    burn_in_and_sweep = 2 * per_sweep - 1
    cooling = LambdaLR(sampler, lambda k: 1.0 - k / burn_in_and_sweep)

    draws, k = [], 0
    for sweep in range(sweeps):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(100 + sweep))
        for rows in order.view(per_sweep, batch):
            k += 1
            sampler.zero_grad()
            u = potential(net, log_sigma, x[rows], y[rows])
            u.backward()
            sampler.step()
            cooling.step()
            draws.append(log_sigma.item())
            print(f"draw {k:2d} potential {u.item():.4f} eta {cooling.get_last_lr()[0]:+.4f} sigma {math.exp(draws[-1]):.4f}")

    print("posterior mean of log sigma", round(sum(draws) / len(draws), 5))
    everything = torch.cat([p.detach().flatten() for p in [*net.parameters(), log_sigma]])
    print("squared length of the last draw:", everything.dot(everything).item())


if __name__ == "__main__":
    main()
