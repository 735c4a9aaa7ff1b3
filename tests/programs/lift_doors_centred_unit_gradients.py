"""Fault prediction for lift doors, day shift and night shift with a head each.

Optimizer: centralised gradients (Yong et al. 2020), scaled to unit length per tensor, then heavy ball.
Batches come in the order of the service log.
"""
import torch
from torch import nn
from torch.optim import Optimizer


class CentredUnit(Optimizer):
    def __init__(self, params, lr=0.05, beta=0.7):
        super().__init__(params, {"lr": lr, "beta": beta})

    @staticmethod
    def _shape(g):
        if g.ndim > 1:
            g.sub_(g.mean(dim=1, keepdim=True))
            g.div_(g.norm())
        return g

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = self._shape(p.grad)
                s = self.state[p]
                s["m"] = g.clone() if "m" not in s else s["m"].mul_(group["beta"]).add_(g)
                p.add_(s["m"], alpha=-group["lr"])


class DoorModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 20), nn.Tanh())
        self.day = nn.Linear(20, 1)
        self.night = nn.Linear(20, 1)

    def forward(self, x, is_night):
        h = self.trunk(x)
        return torch.where(is_night, self.night(h)[:, 0], self.day(h)[:, 0])


def service_log(n_batches, size, gen):
    """Closing time, current, temperature, cycles, vibration. The night lift was out of service for one batch."""
    w = torch.randn(5, generator=gen)
    for b in range(n_batches):
        x = torch.randn(size, 5, generator=gen)
        night = torch.rand(size, generator=gen) < 0.3
        night[0], night[1] = True, False
        if b == 18:
            night = torch.zeros(size, dtype=torch.bool)
        fault = (x @ w + 0.6 * night + 0.5 * torch.randn(size, generator=gen) > 0.4).float()
        yield x, night, fault


def main():
    torch.manual_seed(12)
    gen = torch.Generator().manual_seed(12)
    model = DoorModel()
    opt = CentredUnit(model.parameters())
    bce = nn.BCEWithLogitsLoss()
    running = None
    for i, (x, night, fault) in enumerate(service_log(36, 28, gen), 1):
        opt.zero_grad()
        loss = bce(model(x, night), fault)
        loss.backward()
        opt.step()
        print(f"batch {i:2d}  bce {loss.item():.6f}  night {int(night.sum()):2d}")
    print("weights", f"{sum(p.sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
