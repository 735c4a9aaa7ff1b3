"""Which probes of the greenhouse are needed? Group lasso over the columns of the first layer."""
import torch
import torch.nn as nn
from torch.optim import Optimizer


class GroupProx(Optimizer):
    """Gradient step, then block soft-thresholding of every column of the marked weights."""

    def __init__(self, params, lr=0.05, strength=0.0):
        super().__init__(params, dict(lr=lr, strength=strength))

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.add_(p.grad, alpha=-group["lr"])
                if group["strength"] > 0:
                    cut = group["lr"] * group["strength"]
                    length = p.norm(dim=0, keepdim=True)
                    p.mul_((length - cut).clamp(min=0) / length)
        return loss


class Climate(nn.Module):
    def __init__(self, probes, hidden=14):
        super().__init__()
        self.entry = nn.Linear(probes, hidden)
        self.exit = nn.Sequential(nn.Tanh(), nn.Linear(hidden, 2))

    def forward(self, x):
        return self.exit(self.entry(x))


def hours(n_hours, probes, batch, gen):
    """Probe 4 is taken out of its bed at hour 9 for the rest of the season and reads zero."""
    mix = torch.randn(probes, 2, generator=gen) * torch.linspace(1.2, 0.2, probes)[:, None]
    for hour in range(1, n_hours + 1):
        x = torch.randn(batch, probes, generator=gen)
        if hour >= 9:
            x[:, 4] = 0.0
        y = x @ mix + 0.1 * torch.randn(batch, 2, generator=gen)
        yield hour, x, y


def season(probes=9, n_hours=40):
    torch.manual_seed(15)
    gen = torch.Generator().manual_seed(16)
    net = Climate(probes)
    rest = [net.entry.bias, *net.exit.parameters()]
    opt = GroupProx([
        {"params": [net.entry.weight], "strength": 0.55},
        {"params": rest},
    ], lr=0.08)
    for hour, x, y in hours(n_hours, probes, 48, gen):
        def closure():
            opt.zero_grad()
            with torch.enable_grad():
                value = nn.functional.mse_loss(net(x), y)
                value.backward()
            return value

        value = opt.step(closure)
        used = (net.entry.weight.detach().norm(dim=0) > 0.02).sum().item()
        print("hour %2d | mse %.5f | probes in use %d" % (hour, value.item(), used))
    return net


climate = season()
print("squared norm of the climate net =", float(sum((w.detach() ** 2).sum() for w in climate.parameters())))
