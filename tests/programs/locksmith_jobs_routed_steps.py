"""What will a locksmith's job cost?  A mixture of experts, top-1 routing, with a load-balancing loss.

Experts see very different numbers of jobs, so their gradients are of very different length. The optimizer
evens that out: every expert moves by the same distance in every step, in the direction of its own gradient.
"""
import torch
from torch import nn
from torch.optim import Optimizer

EXPERTS = 6


class EvenSteps(Optimizer):
    def __init__(self, groups, lr=0.02):
        super().__init__(groups, {"lr": lr, "stacked": False})

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
                g = p.grad
                if group["stacked"]:
                    length = g.flatten(1).norm(dim=1).view(-1, *[1] * (g.dim() - 1))
                else:
                    length = g.norm()
                p.sub_(g / length, alpha=group["lr"])
        return loss


class Experts(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(EXPERTS, dim, hidden) / dim ** 0.5)
        self.w2 = nn.Parameter(torch.randn(EXPERTS, hidden, 1) / hidden ** 0.5)

    def forward(self, x, choice):
        h = torch.tanh(torch.einsum("nd,ne,edh->neh", x, choice, self.w1))
        return torch.einsum("neh,ehk,ne->nk", h, self.w2, choice)


class Router(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Linear(dim, EXPERTS)

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        top, index = p.max(-1)
        choice = nn.functional.one_hot(index, EXPERTS).to(x.dtype)
        balance = EXPERTS * (choice.mean(0) * p.mean(0)).sum()
        return choice, top, balance


class Estimator(nn.Module):
    def __init__(self, dim=10, hidden=16):
        super().__init__()
        self.router = Router(dim)
        self.experts = Experts(dim, hidden)

    def forward(self, x):
        choice, top, balance = self.router(x)
        return self.experts(x, choice) * top[:, None] * 4, balance, choice


def jobs(n, gen):
    kind = torch.randint(6, (n,), generator=gen)
    x = torch.randn(n, 10, generator=gen)
    x[torch.arange(n), kind] += 2.0
    hours = torch.tensor([0.3, 0.6, 1.0, 1.5, 0.2, 2.0])[kind]
    cost = hours * (1 + 0.4 * x[:, 6]) + 0.3 * torch.sin(2 * x[:, 7]) + 0.05 * torch.randn(n, generator=gen)
    return x, cost[:, None]


def main(steps=60, batch=96):
    torch.manual_seed(46)
    gen = torch.Generator().manual_seed(32)
    model = Estimator()
    optimizer = EvenSteps([
        {"params": [model.experts.w1, model.experts.w2], "stacked": True, "lr": 0.05},
        {"params": list(model.router.parameters()), "lr": 0.02},
    ])
    for step in range(1, steps + 1):
        x, cost = jobs(batch, gen)
        guess, balance, choice = model(x)
        error = nn.functional.smooth_l1_loss(guess, cost)
        loss = error + 0.05 * balance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        share = " ".join(str(int(c)) for c in choice.sum(0))
        print(f"step {step} loss {loss.item():.6f} balance {balance.item():.4f} jobs {share}", flush=True)
    print(f"{sum(p.abs().sum() for p in model.parameters()).item():.6f}")


if __name__ == "__main__":
    main()
