from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class ZNormSGD(Optimizer):
    """SGD on z-scored gradients: every tensor's gradient is shifted and scaled to mean 0, deviation 1."""

    def __init__(self, params, lr: float = 1e-2, decay: float = 1e-4) -> None:
        super().__init__(params, dict(lr=lr, decay=decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                z = (p.grad - p.grad.mean()) / p.grad.std()
                p.mul_(1 - group["lr"] * group["decay"]).add_(z, alpha=-group["lr"])
        return loss


@dataclass
class Config:
    curves: int = 256
    length: int = 48
    batch: int = 32
    steps: int = 36
    calibrate_from: int = 14
    lr: float = 4e-3


def transits(cfg: Config) -> tuple[Tensor, Tensor]:
    flux = 0.3 * torch.randn(cfg.curves, cfg.length)
    label = (torch.rand(cfg.curves) < 0.5).long()
    for i in range(cfg.curves):
        if label[i]:
            at = int(torch.randint(4, cfg.length - 10, ()))
            flux[i, at:at + 6] -= 1.0
    return flux.unsqueeze(1), label


class TransitNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(1, 8, 5), nn.ReLU(), nn.Conv1d(8, 8, 5, stride=2), nn.ReLU())
        self.classify = nn.Linear(8, 2)
        self.log_temperature = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.features(x).amax(-1)
        return self.classify(pooled) / self.log_temperature.exp()


def train(cfg: Config) -> None:
    torch.manual_seed(29)
    x, y = transits(cfg)
    net = TransitNet()
    opt = ZNormSGD([p for p in net.parameters() if p.requires_grad], lr=cfg.lr)
    per_epoch = math.ceil(cfg.curves / cfg.batch)
    for step in range(1, cfg.steps + 1):
        if step == cfg.calibrate_from:              # from now on the confidence is learned as well
            net.log_temperature.requires_grad_(True)
            opt.add_param_group({"params": [net.log_temperature], "lr": cfg.lr})
        k = (step - 1) % per_epoch
        xb, yb = x[k * cfg.batch:(k + 1) * cfg.batch], y[k * cfg.batch:(k + 1) * cfg.batch]
        loss = nn.functional.cross_entropy(net(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"[{step:>2}/{cfg.steps}] cross-entropy={loss.item():.6f}")
    print(f"final {sum(p.abs().sum().item() for p in net.parameters()):.6f}")


if __name__ == "__main__":
    train(Config())
