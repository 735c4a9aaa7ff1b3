# Asymmetric power GARCH as a recurrent layer, with an order-book layer for the intercept.
# s_t^d = omega(x_t) + alpha * (|r_{t-1}| - gamma * r_{t-1})^d + beta * s_{t-1}^d ; the power d is learned too.
import math
import sys
import torch
import torch.nn as nn
import torch.nn.functional as F

DAYS, WINDOW, BATCH, STEPS = 1500, 60, 12, 45


def log(*a):
    print(*a)
    sys.stdout.flush()


class PowerGarchCell(nn.Module):
    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(-2.0))
        self.beta = nn.Parameter(torch.tensor(1.2))
        self.gamma = nn.Parameter(torch.tensor(0.1))
        self.delta = nn.Parameter(torch.tensor(1.4))

    def forward(self, r, omega, s):
        shock = r.abs() - torch.tanh(self.gamma) * r
        return omega + F.softplus(self.alpha) * shock.pow(self.delta) + torch.sigmoid(self.beta) * s


class VolatilityNet(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.book = nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, 1))
        self.cell = PowerGarchCell()
        self.dof = nn.Parameter(torch.tensor(1.5))

    def forward(self, r, x):
        omega = 0.2 * F.softplus(self.book(x)).squeeze(-1) + 1e-3
        s = torch.ones(r.shape[0])
        out = [s]
        for t in range(r.shape[1] - 1):
            s = self.cell(r[:, t], omega[:, t], s)
            out.append(s)
        sd = torch.stack(out, 1)
        return sd.clamp_min(1e-6).pow(1.0 / self.cell.delta)

    def nll(self, r, sigma):
        nu = 2.0 + F.softplus(self.dof)
        z2 = (r / sigma) ** 2
        c = torch.lgamma((nu + 1) / 2) - torch.lgamma(nu / 2) - 0.5 * torch.log(math.pi * nu)
        return (torch.log(sigma) - c + (nu + 1) / 2 * torch.log1p(z2 / nu)).mean()


def simulate(g):
    """daily moves in percent, in ticks: the exchange quotes in steps, and days without trade have no move"""
    r, s, d = torch.zeros(DAYS), 1.0, 0.7
    x = torch.randn(DAYS, 3, generator=g)
    e = torch.randn(DAYS, generator=g)
    for t in range(DAYS):
        vol = s ** (1 / d)
        r[t] = vol * float(e[t])
        a = abs(float(r[t])) - 0.3 * float(r[t])
        s = 0.12 + 0.05 * max(float(x[t, 0]), 0.0) + 0.15 * a ** d + 0.7 * s
    return (r / 0.05).round() * 0.05, x


def main():
    g = torch.Generator().manual_seed(1212)
    torch.manual_seed(1212)
    returns, book = simulate(g)
    net = VolatilityNet(3)
    opt = torch.optim.Adam([
        {"params": net.book.parameters(), "lr": 5e-3},
        {"params": list(net.cell.parameters()) + [net.dof], "lr": 2.5e-2},
    ])
    for step in range(1, STEPS + 1):
        at = torch.randint(0, DAYS - WINDOW, (BATCH,), generator=g)
        r = torch.stack([returns[a:a + WINDOW] for a in at])
        x = torch.stack([book[a:a + WINDOW] for a in at])
        loss = net.nll(r, net(r, x))
        opt.zero_grad()
        loss.backward()
        opt.step()
        log(f"step {step:02d} nll {loss.item():.6f}")
    log("weights", float(sum(p.detach().abs().sum() for p in net.parameters())))


main()
