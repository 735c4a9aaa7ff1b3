import torch
from torch import nn
from torch.optim.optimizer import Optimizer


class NovoGrad(Optimizer):
    """Layer-wise second moments (Ginsburg et al. 2019)."""

    def __init__(self, params, lr=0.01, betas=(0.9, 0.98), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                energy = p.grad.pow(2).sum()
                if not state:
                    state["v"] = energy.clone()
                    state["m"] = torch.zeros_like(p)
                else:
                    state["v"].mul_(beta2).add_(energy, alpha=1 - beta2)
                scaled = p.grad / state["v"].sqrt()
                scaled.add_(p, alpha=group["weight_decay"])
                state["m"].mul_(beta1).add_(scaled)
                p.add_(state["m"], alpha=-group["lr"])


class Bypass(nn.Module):
    """Small residual branch for the second drill site; starts as the identity."""

    def __init__(self, width, inner=4):
        super().__init__()
        self.down = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(inner, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, h):
        return h + self.up(torch.tanh(self.down(h)))


class DustProfile(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.bypass = None
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        h = self.body(x)
        if self.bypass is not None:
            h = self.bypass(h)
        return self.head(h).squeeze(-1)


def core_segments(site, n, gen):
    """Depth, conductivity, two isotopes and grain size against log dust concentration."""
    x = torch.randn(n, 5, generator=gen)
    y = 0.8 * x[:, 2] - 0.5 * x[:, 3] + 0.3 * torch.sin(2 * x[:, 0])
    if site == "ridge":
        y = y + 0.4 * x[:, 4].abs() - 0.6
    return x, y + 0.05 * torch.randn(n, generator=gen)


def train(model, optimizer, site, first, last, gen):
    for step in range(first, last + 1):
        x, y = core_segments(site, 40, gen)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        print(f"{site:5s} step {step:2d} mse {loss.item():.5f}")


def main():
    torch.manual_seed(1957)
    gen = torch.Generator().manual_seed(1958)
    model = DustProfile()
    optimizer = NovoGrad(model.parameters(), lr=0.02, weight_decay=1e-3)
    train(model, optimizer, "dome", 1, 16, gen)
    model.bypass = Bypass(24)
    optimizer.add_param_group({"params": list(model.bypass.parameters()), "lr": 0.01})
    train(model, optimizer, "ridge", 17, 34, gen)
    total = sum(p.detach().pow(2).sum() for p in model.parameters())
    print("squared weights in total", total.item())


if __name__ == "__main__":
    main()
