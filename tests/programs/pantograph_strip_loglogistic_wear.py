"""How long do the carbon strips of tram pantographs last? Log-logistic survival with covariates.

    S(t | x) = 1 / (1 + (t / a(x)) ** b)          a: median life in weeks, b: shape

The survival function has a derivative written by hand (the one that autograd found was slow on the depot's machine).
Two depots send their strips in turn, each is one micro-batch.
"""
from collections import namedtuple

import torch
from torch import nn

Strips = namedtuple("Strips", "x weeks worn")


class LogSurvival(torch.autograd.Function):
    """log S(t) = -log(1 + u), u = (t / a) ** b"""

    @staticmethod
    def forward(ctx, t, a, b):
        ratio = t / a
        u = ratio.pow(b)
        ctx.save_for_backward(ratio, u, a, b)
        return -torch.log1p(u)

    @staticmethod
    def backward(ctx, grad):
        ratio, u, a, b = ctx.saved_tensors
        common = grad * u / (1 + u)
        grad_a = common * b / a
        grad_b = -common * ratio.log()
        return None, grad_a, grad_b.sum().reshape(b.shape)


class WearModel(nn.Module):
    def __init__(self, n_features):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_features, 16), nn.Softplus(), nn.Linear(16, 1))
        self.raw_shape = nn.Parameter(torch.tensor(0.5))

    def median(self, x):
        return torch.exp(2.5 + self.body(x).squeeze(-1))

    def forward(self, s):
        a, b = self.median(s.x), nn.functional.softplus(self.raw_shape)
        log_s = LogSurvival.apply(s.weeks, a, b)
        worn = s.worn.bool()
        # density of those that were worn out: log f = log b - log a + (b - 1) log(t / a) + 2 log S
        log_ratio = torch.log(s.weeks[worn] / a[worn])
        log_f = b.log() - a[worn].log() + (b - 1) * log_ratio + 2 * log_s[worn]
        return -(log_f.sum() + log_s[~worn].sum()) / len(s.weeks)


def delivery(depot, month, gen, n=24):
    x = torch.randn(n, 5, generator=gen)
    median = torch.exp(2.6 + 0.4 * x[:, 0] - 0.3 * x[:, 1] * depot)
    q = torch.rand(n, generator=gen) * 0.96 + 0.02
    life = median * (q / (1 - q)).pow(0.5)
    follow_up = 8 + 30 * torch.rand(n, generator=gen)
    weeks, worn = torch.minimum(life, follow_up), (life <= follow_up).float()
    if month == 14 and depot == 1:            # car 2107 was sold to a museum on the day it got its strip
        weeks[5], worn[5] = 0.0, 0.0
    return Strips(x, weeks, worn)


def main(months=32):
    torch.manual_seed(31)
    gen = torch.Generator().manual_seed(32)
    model = WearModel(5)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for month in range(1, months + 1):
        opt.zero_grad()
        total = 0.0
        for depot in (0, 1):
            loss = model(delivery(depot, month, gen)) / 2
            loss.backward()
            total += loss.item()
        opt.step()
        print(f"month {month}: negative log likelihood {total:.8f}", flush=True)
    print(sum(p.detach().abs().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    main()
