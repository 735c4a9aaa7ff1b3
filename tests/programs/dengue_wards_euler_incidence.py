"""Weekly dengue cases of sixteen wards: an SIR model whose contact rate is a small network (neural ODE, Euler, dt = 1 week)."""
import argparse

import numpy as np
import torch
import torch.nn as nn


def surveillance(rng, wards, weeks):
    """What the health office counted: a finely integrated epidemic, with Poisson reporting."""
    pop = rng.uniform(2.0, 9.0, wards) * 100
    cov = rng.normal(size=(wards, 3))            # density, rainfall, water storage
    r0 = 2.2 * np.exp(0.35 * cov[:, 0] + 0.25 * cov[:, 1])
    s, i = pop - 4.0, np.full(wards, 4.0)
    cases = np.zeros((weeks, wards))
    fine = 50
    for w in range(weeks):
        for _ in range(fine):
            season = 1.0 + 0.8 * np.sin(2 * np.pi * (w + 1) / 26)
            new = r0 * season * s * i / pop / fine
            s, i = s - new, i + new - 0.9 * i / fine
            cases[w] += new
    return pop, cov, rng.poisson(cases)


class Contact(nn.Module):
    """beta(covariates, week)"""

    def __init__(self, hidden=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, cov, week):
        phase = 2 * np.pi * week / 26
        clock = torch.tensor([np.sin(phase), np.cos(phase)], dtype=torch.float32).expand(len(cov), 2)
        return nn.functional.softplus(self.net(torch.cat([cov, clock], 1))).squeeze(1)


class WardSIR(nn.Module):
    def __init__(self):
        super().__init__()
        self.contact = Contact()
        self.log_gamma = nn.Parameter(torch.tensor(0.0))
        self.logit_report = nn.Parameter(torch.tensor(1.5))

    def forward(self, pop, cov, weeks):
        S, I = pop - 4.0, torch.full_like(pop, 4.0)
        out = []
        for w in range(weeks):
            beta = self.contact(cov, w + 1)
            infections = beta * S * I / pop      # one week, one Euler step
            S = S - infections
            I = I + infections - torch.sigmoid(self.log_gamma) * I
            out.append(infections)
        return torch.stack(out) * torch.sigmoid(self.logit_report)


def poisson_deviance(expected, seen):
    loglik = seen * torch.log(expected) - expected
    return -loglik.mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--weeks", type=int, default=16)
    ap.add_argument("--wards", type=int, default=16)
    ap.add_argument("--steps", type=int, default=45)
    ap.add_argument("--lr", type=float, default=0.006)
    ap.add_argument("--seed", type=int, default=11)
    a = ap.parse_args()

    torch.manual_seed(a.seed)
    pop, cov, cases = surveillance(np.random.default_rng(a.seed), a.wards, a.weeks)
    pop, cov, cases = (torch.tensor(v, dtype=torch.float32) for v in (pop, cov, cases))

    model = WardSIR()
    opt = torch.optim.Adam(model.parameters(), lr=a.lr)
    for step in range(1, a.steps + 1):
        opt.zero_grad()
        expected = model(pop, cov, a.weeks)
        loss = poisson_deviance(expected, cases)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        peak = int(expected.detach().sum(1).argmax())
        print(f"fit {step:02d}  deviance {loss.item():.6f}  |g| {norm.item():.5f}  peak week {peak}", flush=True)
    print(f"{sum(p.abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
