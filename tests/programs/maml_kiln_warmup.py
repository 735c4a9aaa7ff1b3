"""Meta-learned start for kiln calibration curves (first principles MAML, second order).

Inner problem: 3 steps of gradient descent on a kiln's own firings; outer: SGD on the shared start and on
log inner rates, through the unrolled inner steps.  The meta rate warms up linearly.
"""
from dataclasses import dataclass

import torch


@dataclass
class Meta:
    steps: int = 48
    inner: int = 3
    kilns: int = 8
    peak: float = 2.4
    warmup: int = 30
    rate_lr: float = 1e-4


def design(temp):
    u = temp / 1000.0
    return torch.stack([torch.ones_like(u), u, u * u], -1)


class KilnBank:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.common = torch.tensor([0.4, -1.1, 2.0])

    def draw(self, n):
        coef = self.common + 0.3 * torch.randn(n, 3, generator=self.g)
        sets = []
        for _ in range(2):                      # support, query
            temp = 300 + 1000 * torch.rand(n, 12, generator=self.g)
            X = design(temp)
            y = (X * coef[:, None]).sum(-1) + 0.05 * torch.randn(n, 12, generator=self.g)
            sets.append((X, y))
        return sets


def mse(w, X, y):
    return ((X * w[:, None]).sum(-1) - y).square().mean(-1)


def adapt(start, log_rate, X, y, inner):
    w = start.expand(X.shape[0], 3)
    for k in range(inner):
        g, = torch.autograd.grad(mse(w, X, y).sum(), w, create_graph=True)
        w = w - log_rate[k].exp() * g
    return w


def main(cfg=Meta()):
    torch.manual_seed(5)
    bank = KilnBank(50)
    start = torch.zeros(3, requires_grad=True)
    log_rate = torch.full((cfg.inner,), -3.5, requires_grad=True)
    meta_opt = torch.optim.SGD([
        {"params": [start], "lr": cfg.peak},
        {"params": [log_rate], "lr": cfg.rate_lr},
    ])
    # start is shared by all kilns, so it may move fast (?) once the inner rates have settled
    warm = torch.optim.lr_scheduler.LambdaLR(
        meta_opt, [lambda s: min(1.0, (s + 1) / cfg.warmup), lambda s: 0.0 if s > 8 else 1.0])
    for it in range(1, cfg.steps + 1):
        (Xs, ys), (Xq, yq) = bank.draw(cfg.kilns)
        w = adapt(start, log_rate, Xs, ys, cfg.inner)
        outer = mse(w, Xq, yq).mean()
        meta_opt.zero_grad()
        outer.backward()
        meta_opt.step()
        warm.step()
        print(f"meta {it:2d} query mse {outer.item():.6e} |start| {start.detach().norm().item():.4e}")
    print("end", f"{(start.detach().sum() + log_rate.detach().sum()).item():.6e}")


if __name__ == "__main__":
    main()
