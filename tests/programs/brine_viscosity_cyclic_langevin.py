"""Posterior over a small net for brine viscosity (temperature, salinity -> log cP) by cyclical SGLD
(Zhang et al. 2020): explore with plain SGD in the first part of a cycle, sample in the second."""
import math
from typing import Iterable

import torch
from torch import nn
from torch.optim import Optimizer

N_DATA, BATCH, STEPS = 240, 24, 42
CYCLE, LR0, COLD = 14, 1.5e-4, 0.05


class CyclicLangevin(Optimizer):
    """theta <- theta - lr * grad U + sqrt(2 lr T) xi, preconditioned like RMSprop (pSGLD)."""

    def __init__(self, params: Iterable, lr: float, temperature: float, decay: float = 0.95):
        super().__init__(params, dict(lr=lr, temperature=temperature, decay=decay, sampling=False))
        self.gen = torch.Generator().manual_seed(99)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            lr = torch.tensor(group["lr"])
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["v"] = torch.ones_like(p)
                v = st["v"].mul_(group["decay"]).addcmul_(p.grad, p.grad, value=(1 - group["decay"]) / N_DATA ** 2)
                pre = 1.0 / (1e-3 + v.sqrt())
                p.sub_(lr * pre * p.grad)
                if group["sampling"]:
                    amplitude = (2 * lr * group["temperature"]).sqrt()
                    xi = torch.randn(p.shape, generator=self.gen)
                    p.add_(amplitude * pre.sqrt() * xi)


def cyclic_lr(k: int) -> tuple[float, bool]:
    phase = (k % CYCLE) / CYCLE
    cosine = 0.5 * (math.cos(math.pi * phase) + 1)
    # subtract a floor, so the end of a cycle is really cold
    return LR0 * (cosine - COLD / 2), phase > 0.6


def brine(n: int):
    g = torch.Generator().manual_seed(12)
    temp, salt = torch.rand(n, generator=g) * 80, torch.rand(n, generator=g) * 25
    logcp = math.log(1.79) - 0.025 * temp + 0.0001 * temp ** 2 + 0.02 * salt
    x = torch.stack([temp / 40 - 1, salt / 12.5 - 1], 1)
    return x, logcp + 0.03 * torch.randn(n, generator=g)


class Posterior(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
        self.log_noise = nn.Parameter(torch.tensor(-1.0))

    def potential(self, x, y):
        """minibatch estimate of -log p(D, theta)"""
        res = (y - self.body(x).squeeze(-1)) * torch.exp(-self.log_noise)
        nll = (0.5 * res ** 2 + self.log_noise).sum() * (N_DATA / len(y))
        prior = sum((p ** 2).sum() for p in self.body.parameters()) / 2
        return nll + prior


def main():
    torch.manual_seed(6)
    X, Y = brine(N_DATA)
    net = Posterior()
    sampler = CyclicLangevin(net.parameters(), lr=LR0, temperature=0.01)
    bag = []
    for k in range(STEPS):
        group = sampler.param_groups[0]
        group["lr"], group["sampling"] = cyclic_lr(k)
        idx = torch.randint(N_DATA, (BATCH,))
        u = net.potential(X[idx], Y[idx])
        sampler.zero_grad()
        u.backward()
        sampler.step()
        if group["sampling"] and k % 2 == 0:
            bag.append(nn.utils.parameters_to_vector(net.parameters()).detach().clone())
        print(f"k={k + 1} lr={group['lr']:.3e} U={u.item():.5f} {'sample' if group['sampling'] else 'explore'} bag={len(bag)}")
    print(f"bag of {len(bag)}, sum of the chain's last state {nn.utils.parameters_to_vector(net.parameters()).double().sum().item():.6f}")


if __name__ == "__main__":
    main()
