"""Click-through rate with a factorisation machine, trained by the stochastic Polyak step size (SPS_max)."""
import math

import torch
from torch import nn
from torch.optim import Optimizer

FIELDS = {"user": 50, "ad": 30, "hour": 24, "device": 4}


class StochasticPolyak(Optimizer):
    """eta_t = min((f_i(w) - f*) / (c |g|^2), eta_bound);  eta_bound starts without a bound and is smoothed afterwards."""

    def __init__(self, params, c=0.5, f_star=0.0, growth=2.0, batches_per_epoch=20):
        defaults = dict(c=c, f_star=f_star, bound=math.inf)
        super().__init__(params, defaults)
        self.gamma = growth ** (1.0 / batches_per_epoch)
        self.best = torch.full((), math.inf)
        self.last_eta = torch.full((), math.inf)

    def step(self, closure):
        with torch.enable_grad():
            loss = closure()
        value = loss.detach()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            square = sum(p.grad.pow(2).sum() for p in params)
            eta = (value - group["f_star"]) / (group["c"] * square + 1e-8)
            eta = torch.minimum(eta, torch.tensor(group["bound"]))
            eta = eta.clamp(max=4.0)
            with torch.no_grad():
                for p in params:
                    state = self.state[p]
                    if not state:
                        state["steps"] = 0
                        state["smallest_loss"] = torch.full_like(value, math.inf)
                    state["steps"] += 1
                    state["smallest_loss"] = torch.minimum(state["smallest_loss"], value)
                    p.add_(p.grad * -eta)
            group["bound"] = float(self.gamma * eta)
            self.last_eta = eta
        self.best = torch.minimum(self.best, value)
        return value


class FactorisationMachine(nn.Module):
    def __init__(self, dim=6):
        super().__init__()
        self.offsets = [0]
        for n in FIELDS.values():
            self.offsets.append(self.offsets[-1] + n)
        total = self.offsets.pop()
        self.linear = nn.Embedding(total, 1)
        self.factors = nn.Embedding(total, dim)
        self.bias = nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.linear.weight)
        nn.init.normal_(self.factors.weight, std=0.1)

    def forward(self, ids):
        ids = ids + torch.tensor(self.offsets)
        v = self.factors(ids)
        pairwise = 0.5 * (v.sum(1).pow(2) - v.pow(2).sum(1)).sum(1)
        return self.bias + self.linear(ids).sum((1, 2)) + pairwise


def make_log(n=1600):
    ids = torch.stack([torch.randint(0, size, (n,)) for size in FIELDS.values()], 1)
    logit = 1.5 * torch.sin(ids[:, 0].float()) + torch.cos(ids[:, 1].float()) - 0.7
    return ids, torch.bernoulli(torch.sigmoid(logit))


def main():
    torch.manual_seed(5)
    ids, clicks = make_log()
    model = FactorisationMachine()
    optimizer = StochasticPolyak(model.parameters())
    criterion = nn.BCEWithLogitsLoss()
    step = 0
    for epoch in range(3):
        order = torch.randperm(len(ids))
        for rows in order.split(80):
            step += 1

            def closure():
                optimizer.zero_grad()
                loss = criterion(model(ids[rows]), clicks[rows])
                loss.backward()
                return loss

            loss = optimizer.step(closure)
            print(f"{step:3d} logloss {loss.item():.5f} eta {optimizer.last_eta.item():.4f} best {optimizer.best.item():.5f}")
    print("finite", int(all(p.isfinite().all() for p in model.parameters())))


if __name__ == "__main__":
    main()
