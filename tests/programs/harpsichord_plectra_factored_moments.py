# Loudness spectrum of a plucked harpsichord string; a second branch joins in the second stage of training.
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer


class FactoredMoments(Optimizer):
    """Second moments of a matrix as the product of row and column averages."""

    def __init__(self, params, lr=1e-2, beta=0.9, clip=1.0, eps=1e-8):
        super().__init__(params, dict(lr=lr, beta=beta, clip=clip, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                self._update(p, self.state[p], group)
        return loss

    def _update(self, p, state, group):
        sq, beta = p.grad.square(), group["beta"]
        state["n"] = state.get("n", 0) + 1
        debias = 1.0 - beta ** state["n"]
        if p.dim() == 2:
            if state["n"] == 1:
                state["row"], state["col"] = torch.zeros(p.shape[0]), torch.zeros(p.shape[1])
            state["row"].lerp_(sq.mean(1), 1 - beta)
            state["col"].lerp_(sq.mean(0), 1 - beta)
            second = torch.outer(state["row"], state["col"]) / state["row"].mean()
            update = p.grad / (second / debias).sqrt()
        else:
            if state["n"] == 1:
                state["full"] = torch.zeros_like(p)
            state["full"].lerp_(sq, 1 - beta)
            update = p.grad / ((state["full"] / debias).sqrt() + group["eps"])
        update = update / (update.square().mean().sqrt() / group["clip"]).clamp(min=1.0)
        p.add_(update, alpha=-group["lr"])


class StringModel(nn.Module):
    def __init__(self, inputs=5, width=24, partials=10):
        super().__init__()
        self.inp = nn.Linear(inputs, width)
        self.out = nn.Linear(width, partials)
        self.branch, self.gate = None, None

    def grow(self, width=24):
        self.branch = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.gate = nn.Parameter(torch.zeros(1))
        return [*self.branch.parameters(), self.gate]

    def forward(self, x):
        h = torch.tanh(self.inp(x))
        if self.branch is not None:
            h = h + self.gate * self.branch(h)
        return self.out(h)


def pluck(n, g):
    """Plucking point, stiffness, length, quill width, speed -> level of the first ten partials."""
    x = torch.rand(n, 5, generator=g)
    k = torch.arange(1, 11)
    comb = torch.sin(k * torch.pi * (0.08 + 0.3 * x[:, :1])).abs()
    level = comb / (1 + (0.2 + 0.4 * x[:, 3:4]) * k) + 0.3 * x[:, 4:5] * torch.exp(-k * x[:, 1:2])
    return 2 * x - 1, level + 0.01 * torch.randn(n, 10, generator=g)


def main(steps=36, second_stage=15):
    torch.manual_seed(31)
    g = torch.Generator().manual_seed(13)
    model = StringModel()
    opt = FactoredMoments(model.parameters(), lr=8e-3)
    for step in range(1, steps + 1):
        if step == second_stage:
            opt.add_param_group({"params": model.grow(), "lr": 4e-3})
            print("-- second stage --")
        x, level = pluck(48, g)
        loss = F.mse_loss(model(x), level)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step:02d} mse {loss.item():.6f}")
    print("squared norm of the parameters:", sum(p.detach().square().sum().item() for p in model.parameters()))


main()
