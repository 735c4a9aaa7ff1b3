"""Two soil properties from near infrared spectra. The trunk follows the common descent direction of both
tasks (multiple gradient descent, closed form for two), each head follows its own loss."""
from dataclasses import dataclass, field
from typing import Dict

import torch
import torch.nn as nn


@dataclass
class TubeConfig:
    clay: float = 0.45
    carbon: float = 0.40


@dataclass
class Config:
    seed: int = 17
    bands: int = 24
    width: int = 32
    samples: int = 96
    batch: int = 6
    steps: int = 64
    lr: float = 6e-3
    tube: TubeConfig = field(default_factory=TubeConfig)


class SpectraNet(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(cfg.bands, cfg.width), nn.Tanh(),
                                   nn.Linear(cfg.width, cfg.width), nn.Tanh())
        self.heads = nn.ModuleDict({k: nn.Linear(cfg.width, 1) for k in ("clay", "carbon")})

    def forward(self, x) -> Dict[str, torch.Tensor]:
        h = self.trunk(x)
        return {k: head(h).squeeze(-1) for k, head in self.heads.items()}


def tube_loss(pred, target, eps):
    """Laboratories agree to within eps only, so nothing is asked inside of it."""
    return torch.relu((pred - target).abs() - eps).mean()


def flat(grads):
    return torch.cat([g.reshape(-1) for g in grads])


def min_norm_weight(g1, g2):
    diff = g1 - g2
    gamma = torch.dot(-diff, g2) / torch.dot(diff, diff)
    return gamma.clamp(0.0, 1.0)


class MGDATrainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        torch.manual_seed(cfg.seed)
        self.model = SpectraNet(cfg)
        self.opt = torch.optim.Adam(self.model.parameters(), lr=cfg.lr)
        gen = torch.Generator().manual_seed(cfg.seed)
        self.x = torch.randn(cfg.samples, cfg.bands, generator=gen)
        mix = torch.randn(cfg.bands, 2, generator=gen) / cfg.bands ** 0.5
        y = self.x @ mix + 0.16 * torch.randn(cfg.samples, 2, generator=gen)
        self.y = {"clay": y[:, 0], "carbon": y[:, 1]}
        self.gen = gen

    def training_step(self):
        idx = torch.randperm(self.cfg.samples, generator=self.gen)[:self.cfg.batch]
        out = self.model(self.x[idx])
        losses = {k: tube_loss(out[k], self.y[k][idx], getattr(self.cfg.tube, k)) for k in out}
        trunk = list(self.model.trunk.parameters())
        per_task = {}
        for k, loss in losses.items():
            head = list(self.model.heads[k].parameters())
            grads = torch.autograd.grad(loss, trunk + head, retain_graph=True)
            per_task[k] = grads[:len(trunk)]
            for p, g in zip(head, grads[len(trunk):]):
                p.grad = g
        gamma = min_norm_weight(flat(per_task["clay"]), flat(per_task["carbon"]))
        for p, a, b in zip(trunk, per_task["clay"], per_task["carbon"]):
            p.grad = gamma * a + (1 - gamma) * b
        self.opt.step()
        return losses

    def fit(self):
        for it in range(1, self.cfg.steps + 1):
            losses = self.training_step()
            total = sum(v.item() for v in losses.values())
            print(f"{it:3d} loss={total:.6f} clay={losses['clay'].item():.6f} "
                  f"carbon={losses['carbon'].item():.6f}", flush=True)
        s = sum(p.detach().abs().sum().item() for p in self.model.parameters())
        print(f"l1 of weights {s:.4f}", flush=True)


if __name__ == "__main__":
    MGDATrainer(Config()).fit()
