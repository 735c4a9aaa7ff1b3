import torch
import torch.nn as nn

torch.manual_seed(5)
STUDY_END = 48          # months
DISTRICTS = 32


class PumpRisk(nn.Module):
    """Relative hazard of a sewage pump from age, head, starts per hour, grit and maintenance."""

    def __init__(self, n_in=5):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh())
        self.out = nn.Linear(8, 1, bias=False)

    def forward(self, x):
        return self.out(self.body(x)).squeeze(-1)


def district(idx):
    g = torch.Generator().manual_seed(900 + idx)
    n = 22 + idx % 7
    x = torch.randn(n, 5, generator=g)
    hazard = 0.02 * torch.exp(0.6 * x[:, 0] + 0.5 * x[:, 2] - 0.4 * x[:, 4])
    if idx == 18:
        hazard = hazard * 9          # saline groundwater, pumps of the first generation
    life = torch.ceil(-torch.log(torch.rand(n, generator=g)) / hazard)
    failed = life <= STUDY_END
    return x, life.clamp(max=STUDY_END), failed


def partial_likelihood(eta, month, failed):
    """Cox partial likelihood with the correction of Efron for pumps that fail in the same month."""
    risk = eta.exp()
    total = eta.new_zeros(())
    for m in torch.unique(month[failed]):
        dead = failed & (month == m)
        at_risk = risk[month >= m].sum()
        tied = risk[dead].sum()
        d = int(dead.sum())
        total = total + eta[dead].sum()
        for j in range(1, d + 1):
            total = total - torch.log(at_risk - (j / d) * tied)
    return -total / failed.sum()


def fit():
    net = PumpRisk()
    opt = torch.optim.NAdam(net.parameters(), lr=1e-2, weight_decay=1e-3)
    for step in range(1, DISTRICTS + 1):
        x, month, failed = district(step - 1)
        loss = partial_likelihood(net(x), month, failed)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print("district %2d: %2d pumps, %2d failures, loss %.5f" % (step, len(x), int(failed.sum()), loss.item()))
    return net


net = fit()
print("squared weights sum to", sum((w ** 2).sum() for w in net.parameters()).item())
