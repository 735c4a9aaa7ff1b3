# Abundance of reef fish from transect covariates, fitted by Poisson deviance.
# counts ~ Poisson(effort * rate(x)), effort = metres of transect that were swum
import torch
from torch import nn

torch.manual_seed(5)
N_TRANSECTS, N_SPECIES, N_COV = 320, 9, 6


class AbundanceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Linear(N_COV, 24), nn.SiLU(),
            nn.Linear(24, 24), nn.SiLU(),
        )
        self.log_rate = nn.Linear(24, N_SPECIES)

    def forward(self, cov, effort):
        rate = self.log_rate(self.trunk(cov)).clamp(-8, 4).exp()
        return effort.unsqueeze(1) * rate


class PoissonDeviance(nn.Module):
    """2 * sum( y log(y/mu) - (y - mu) ), with the 0 log 0 = 0 convention"""

    def forward(self, mu, y):
        saturated = torch.xlogy(y, y)
        fitted = torch.xlogy(y, mu)
        return 2.0 * (saturated - fitted - y + mu).sum(dim=1).mean()


def survey():
    cov = torch.randn(N_TRANSECTS, N_COV)
    beta = torch.randn(N_COV, N_SPECIES) * 0.4
    effort = torch.randint(2, 11, (N_TRANSECTS,)).float() / 10
    # 2019-03-08, dive 2: storm, boat returned before the second transect
    effort[171] = 0.0
    counts = torch.poisson(effort[:, None] * (cov @ beta).exp() * 3.0)
    return cov, effort, counts


def fit():
    cov, effort, counts = survey()
    net, criterion = AbundanceNet(), PoissonDeviance()
    optim = torch.optim.NAdam(net.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(optim, 0.97)
    for step, idx in enumerate(torch.arange(N_TRANSECTS).split(20), start=1):
        mu = net(cov[idx], effort[idx])
        dev = criterion(mu, counts[idx])
        optim.zero_grad(set_to_none=True)
        dev.backward()
        optim.step()
        sched.step()
        print(f"{step:3d}  deviance {dev.item():9.4f}")
    return net


net = fit()
print("sum of squares:", sum(w.square().sum().item() for w in net.state_dict().values()))
