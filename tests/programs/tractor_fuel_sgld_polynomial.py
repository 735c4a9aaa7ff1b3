"""Posterior over a small net for tractor fuel use (litres per hectare), preconditioned SGLD, polynomial step decay."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class PSGLD(torch.optim.Optimizer):
    """Preconditioned stochastic gradient Langevin dynamics (Li et al. 2016), without the Gamma term."""

    def __init__(self, params, lr, alpha=0.95, eps=1e-3, seed=0):
        super().__init__(params, {"lr": lr, "alpha": alpha, "eps": eps})
        self.rng = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["sq"] = torch.ones_like(p)
                st["sq"].mul_(group["alpha"]).addcmul_(p.grad, p.grad, value=1 - group["alpha"])
                pre = 1.0 / (st["sq"].sqrt() + group["eps"])
                kick = torch.randn(p.shape, generator=self.rng)
                noise = (pre * group["lr"] * 1e-4).sqrt() * kick
                p.add_(-0.5 * group["lr"] * pre * p.grad + noise)


class FuelNet(nn.Module):
    def __init__(self, n_in=5, width=24):
        super().__init__()
        self.hidden = nn.Linear(n_in, width)
        self.drop = nn.Dropout(0.05)
        self.mean = nn.Linear(width, 1)
        self.log_noise = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.mean(self.drop(torch.tanh(self.hidden(x)))).squeeze(-1)


def field_log(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=g)
    depth, clay, speed = x[:, 0], x[:, 1], x[:, 2]
    y = 0.9 * depth + 0.5 * torch.relu(clay) * depth - 0.3 * speed**2 + 0.2 * torch.randn(n, generator=g)
    return TensorDataset(x, y)


def step_size(a0, t, horizon):
    # a0 (1 - t / horizon): reaches zero with the last update, so that the last samples are still
    return a0 * (1.0 - t / horizon)


def neg_log_posterior(net, x, y, n):
    prec = torch.exp(-2 * net.log_noise)
    fit = (0.5 * prec * (net(x) - y) ** 2 + net.log_noise).mean()
    prior = sum((p**2).sum() for p in net.parameters()) / (2 * n)
    return fit + prior


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--records", type=int, default=150)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--epochs", type=int, default=9)
    ap.add_argument("--step-size", type=float, default=0.05)
    a = ap.parse_args()
    torch.manual_seed(23)
    data = field_log(a.records, 24)
    loader = DataLoader(data, batch_size=a.batch, shuffle=True, generator=torch.Generator().manual_seed(25))
    net = FuelNet()
    opt = PSGLD(net.parameters(), lr=a.step_size, seed=26)
    horizon = a.epochs * (a.records // a.batch)
    t = 0
    for epoch in range(a.epochs):
        for x, y in loader:
            for group in opt.param_groups:
                group["lr"] = step_size(a.step_size, t, horizon)
            loss = neg_log_posterior(net, x, y, a.records)
            opt.zero_grad()
            loss.backward()
            opt.step()
            t += 1
            print(f"epoch {epoch} update {t} U {loss.item():.6f}", flush=True)
    print(f"{sum(p.abs().sum().item() for p in net.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
