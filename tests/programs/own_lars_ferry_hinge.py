"""Rank pairs of harbour ferries by the delay to expect. Layer-wise rates (LARS) with our own optimizer."""
import argparse

import torch
from torch import nn


class Lars(torch.optim.Optimizer):
    """You, Gitman, Ginsburg 2017, without the weight decay term.

    state: 'velocity' (running mean of the gradient), 'age'
    """

    def __init__(self, params, lr=0.02, beta=0.7, warm=5):
        super().__init__(params, dict(lr=lr, beta=beta, warm=warm))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                if not st:
                    st["velocity"] = torch.zeros_like(p)
                    st["age"] = 0
                st["age"] += 1
                st["velocity"].lerp_(p.grad, 1 - group["beta"])
                trust = p.norm() / p.grad.norm()
                ramp = min(1.0, st["age"] / group["warm"])
                p.sub_(group["lr"] * ramp * trust * st["velocity"])
        return loss


class DelayScore(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.hidden = nn.Linear(features, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, boat):
        return self.score(torch.relu(self.hidden(boat))).squeeze(-1)


def pairs(steps, batch, features, g):
    """(first, second, gap): gap = minutes by which the first was later than the second, as the margin in hours."""
    taste = torch.randn(features, generator=g)
    for step in range(1, steps + 1):
        first, second = torch.randn(2, batch, features, generator=g)
        gap = (first - second) @ taste * 4.0
        swap = gap < 0
        first, second = torch.where(swap[:, None], second, first), torch.where(swap[:, None], first, second)
        margin = gap.abs() / 60 + 0.2
        if step == 18:
            # storm day: the service did not run, the table lists each boat against itself with no delay
            second, margin = first.clone(), torch.zeros(batch)
        yield step, first, second, margin


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=32)
    ap.add_argument("--batch", type=int, default=24)
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--seed", type=int, default=12)
    args = ap.parse_args(argv)

    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = DelayScore(9, 20)
    opt = Lars(model.parameters(), lr=args.lr)
    for step, first, second, margin in pairs(args.steps, args.batch, 9, torch.Generator().manual_seed(args.seed)):
        def closure():
            opt.zero_grad()
            gap = model(first) - model(second)
            loss = torch.relu(margin - gap).mean()
            loss.backward()
            return loss

        loss = opt.step(closure)
        print(f"step {step:2d}  hinge {loss.item():.6f}")
    print(f"sum of weights {sum(float(p.detach().sum()) for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
