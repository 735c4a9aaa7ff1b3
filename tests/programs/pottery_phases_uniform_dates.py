import torch
from torch import nn
from torch.distributions import Normal, Uniform, kl_divergence

# Each assemblage was deposited during some interval inside its ceramic phase.
# Radiocarbon dates (centuries BC, already calibrated) tell where in the phase.

PHASES = torch.tensor([[30.0, 36.0], [24.0, 30.0], [19.0, 24.0], [12.0, 19.0], [8.0, 12.0]])


class Chronology(nn.Module):
    def __init__(self, phase_of):
        super().__init__()
        lo, hi = PHASES[phase_of].T
        self.register_buffer("lo", lo)
        self.register_buffer("hi", hi)
        self.middle = nn.Parameter((lo + hi) / 2)
        self.log_half = nn.Parameter(torch.full_like(lo, 0.7).log())
        self.log_noise = nn.Parameter(torch.zeros(()))

    def posterior(self):
        half = self.log_half.exp()
        return Uniform(self.middle - half, self.middle + half)

    def forward(self, idx, dates, n_draws=6):
        q = self.posterior()
        deposited = q.rsample((n_draws,))[:, idx]
        fit = Normal(deposited, self.log_noise.exp()).log_prob(dates).mean()
        phase = Uniform(self.lo, self.hi)
        penalty = kl_divergence(q, phase)
        return -fit, penalty.mean()


class Excavation:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.phase_of = torch.arange(5).repeat_interleave(4)
        lo, hi = PHASES[self.phase_of].T
        where = torch.rand(len(lo)) * 0.5 + 0.25
        where[9] = 1.15                                # the old-wood charcoal of pit 9
        self.true = lo + where * (hi - lo)

    def season(self, n=80):
        idx = torch.randint(0, len(self.true), (n,))
        return idx, self.true[idx] + 0.4 * torch.randn(n)


def train(seasons=40, lr=0.05, weight=0.05):
    site = Excavation(seed=1922)
    model = Chronology(site.phase_of)
    opt = torch.optim.Adam(
        [
            {"params": [model.middle], "lr": 2 * lr},
            {"params": [model.log_half, model.log_noise], "lr": 0.4 * lr},
        ]
    )
    for season in range(1, seasons + 1):
        idx, dates = site.season()
        misfit, penalty = model(idx, dates)
        loss = misfit + weight * penalty
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"season {season:2d}: elbo {-loss.item():.4f} misfit {misfit.item():.4f}")
    return model


model = train()
total = sum(p.detach().abs().sum() for p in model.parameters())
print(f"sum of the absolute parameters: {total.item():.4f}")
