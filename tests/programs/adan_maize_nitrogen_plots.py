from contextlib import contextmanager

import torch
from torch.utils.data import DataLoader, TensorDataset


class Adan(torch.optim.Optimizer):
    """Adaptive Nesterov momentum (Xie et al.), with a first beta that rises during training."""

    def __init__(self, params, lr, betas=(0.9, 0.92, 0.99), top=1.0, rise=22, eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, top=top, rise=rise, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            start, b2, b3 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                s = self.state[p]
                if not s:
                    s.update(k=0, m=torch.zeros_like(p), v=torch.zeros_like(p), n=torch.zeros_like(p), last=p.grad.clone())
                s["k"] += 1
                k = s["k"]
                b1 = start + (group["top"] - start) * min(1.0, k / group["rise"])
                change = p.grad - s["last"]
                s["m"].lerp_(p.grad, 1 - b1)
                s["v"].lerp_(change, 1 - b2)
                s["n"].lerp_((p.grad + b2 * change) ** 2, 1 - b3)
                s["last"].copy_(p.grad)
                first = s["m"] / (1 - b1 ** k)
                second = s["v"] / (1 - b2 ** k)
                scale = (s["n"] / (1 - b3 ** k)).sqrt() + group["eps"]
                p.sub_(group["lr"] * (first + b2 * second) / scale)
        return loss


class YieldCurve(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.soil = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.GELU(), torch.nn.Linear(16, 3))

    def forward(self, soil, nitrogen):
        plateau, slope, base = self.soil(soil).unbind(1)
        return base + plateau * torch.tanh(torch.nn.functional.softplus(slope) * nitrogen)


@contextmanager
def season(optimizer):
    """Collects the losses of one season; they are harvested when the season is over."""
    optimizer.zero_grad()
    losses = []
    yield losses.append
    sum(losses).backward()
    optimizer.step()


def field_trial(n=35 * 24):
    g = torch.Generator().manual_seed(31)
    soil = torch.randn(n, 5, generator=g)
    nitrogen = torch.rand(n, generator=g) * 2
    harvest = 1.5 + soil[:, 0] * 0.4 + (2 + 0.3 * soil[:, 1]) * torch.tanh(1.2 * nitrogen)
    return TensorDataset(soil, nitrogen, harvest + 0.1 * torch.randn(n, generator=g))


if __name__ == "__main__":
    torch.manual_seed(3)
    model = YieldCurve()
    adan = Adan(model.parameters(), lr=0.008)
    for number, (soil, nitrogen, harvest) in enumerate(DataLoader(field_trial(), batch_size=24, shuffle=True), 1):
        with season(adan) as collect:
            loss = torch.nn.functional.huber_loss(model(soil, nitrogen), harvest)
            collect(loss)
        print(f"plots {number:>2}: huber {loss.item():.5f}")
    print("weights, sum of squares:", f"{sum(p.detach().square().sum().item() for p in model.parameters()):.5f}")
