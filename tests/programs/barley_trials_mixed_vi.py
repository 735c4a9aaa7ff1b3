"""Yield trials of winter barley: y = farm covariates * beta + line effect u + error, u ~ N(0, tau^2).

Mean-field variational inference for u, point estimates for beta and tau. The error variance isn't a parameter:
it is tracked as a running moment over the trials, as in our old SAS macro.
"""
from typing import NamedTuple

import torch
from torch import nn

LINES, COVS = 30, 4


class Trial(NamedTuple):
    farm: str
    design: str            # "alpha" lattice or "strip"
    line: torch.Tensor
    x: torch.Tensor
    y: torch.Tensor

    def to(self, dtype):
        return self._replace(x=self.x.to(dtype), y=self.y.to(dtype))


class LineEffects(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(LINES))
        self.log_sd = nn.Parameter(torch.full((LINES,), -1.0))
        self.log_tau = nn.Parameter(torch.tensor(0.0))

    def rsample(self, gen):
        return self.mean + self.log_sd.exp() * torch.randn(LINES, generator=gen, dtype=self.mean.dtype)

    def kl(self):
        var, tau2 = (2 * self.log_sd).exp(), (2 * self.log_tau).exp()
        return 0.5 * ((var + self.mean ** 2) / tau2 - 1 - 2 * self.log_sd + 2 * self.log_tau).sum()


class MixedModel(nn.Module):
    def __init__(self, gen):
        super().__init__()
        self.u = LineEffects()
        self.beta = nn.Linear(COVS, 1)
        self.gen = gen
        self.err_var = 1.0

    def track(self, resid, momentum=0.8):
        ss = (resid - resid.mean()).pow(2).sum()
        s2 = ss / (len(resid) - 1)
        self.err_var = momentum * self.err_var + (1 - momentum) * s2.clamp(0.05, 20.0)

    def forward(self, t: Trial, share):
        fit = self.beta(t.x).squeeze(1) + self.u.rsample(self.gen)[t.line]
        resid = t.y - fit
        if t.design == "alpha":
            self.track(resid.detach())
            nll = 0.5 * (resid ** 2 / self.err_var + torch.log(self.err_var)).sum()
        else:
            # strips have no randomisation, so a robust loss and no say in the variance
            nll = nn.functional.huber_loss(fit, t.y, reduction="sum")
        return nll + share * self.u.kl()


def field_books(n, gen):
    truth = 0.7 * torch.randn(LINES, generator=gen)
    for i in range(n):
        plots = int(torch.randint(8, 20, (1,), generator=gen))
        design = "strip" if i < 18 and i % 3 == 1 else "alpha"   # strips were given up
        if i in (7, 20):          # hail: one plot was left to harvest
            plots = 1
        line = torch.randint(0, LINES, (plots,), generator=gen)
        x = torch.randn(plots, COVS, generator=gen)
        y = x @ torch.tensor([0.8, -0.3, 0.0, 0.5]) + truth[line] + 0.4 * torch.randn(plots, generator=gen)
        yield Trial(f"farm{i % 7}", design, line, x, y)


def run(trials=36):
    torch.manual_seed(13)
    gen = torch.Generator().manual_seed(14)
    model = MixedModel(gen).double()
    opt = torch.optim.Adam([{"params": model.u.parameters(), "lr": 0.03},
                            {"params": model.beta.parameters(), "lr": 0.02}])
    print("trial farm design plots -ELBO")
    for k, t in enumerate(field_books(trials, torch.Generator().manual_seed(15)), 1):
        t = t.to(torch.float64)
        loss = model(t, 1 / trials)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{k:2d} {t.farm} {t.design:5s} {len(t.y):2d} {loss.item():.6f}")
    print("sum", f"{sum(p.detach().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    run()
