"""Parcel inspection: damage class, repack cost and label legibility from one trunk. In-house trainer."""
from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    features: int = 24
    width: int = 40
    accumulate: int = 2
    micro: int = 32
    steps: int = 36
    lr: float = 2e-3
    ema: float = 0.95
    task_weights: dict = field(default_factory=lambda: {"damage": 1.0, "cost": 0.5, "label": 0.7})


class Inspector(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.stem = nn.Linear(cfg.features, cfg.width)
        self.trunk = nn.Linear(cfg.width, cfg.width)
        self.gain = nn.Parameter(torch.ones(cfg.width))
        self.heads = nn.ModuleDict({"damage": nn.Linear(cfg.width, 5), "cost": nn.Linear(cfg.width, 1),
                                    "label": nn.Linear(cfg.width, 1)})

    def forward(self, x):
        h = F.gelu(self.stem(x))
        h = h + F.gelu(self.trunk(h)) * self.gain
        return {k: head(h) for k, head in self.heads.items()}


def task_losses(out, batch):
    return {
        "damage": F.cross_entropy(out["damage"], batch["damage"]),
        "cost": F.smooth_l1_loss(out["cost"].squeeze(1), batch["cost"]),
        "label": F.binary_cross_entropy_with_logits(out["label"].squeeze(1), batch["label"]),
    }


class Callback:
    def on_step_end(self, trainer): ...
    def on_fit_end(self, trainer): ...


class Console(Callback):
    def on_step_end(self, trainer):
        parts = " ".join(f"{k}={v:.6f}" for k, v in trainer.last.items())
        print(f"[{trainer.step:03d}] {parts}", flush=True)

    def on_fit_end(self, trainer):
        print(f"{sum(p.detach().abs().sum().item() for p in trainer.model.parameters()):.6f}")


class PruneRows(Callback):
    """From `start` on, the weakest output rows of the trunk are kept at zero (structured sparsity for the edge box)."""

    def __init__(self, start, share):
        self.start, self.share, self.keep = start, share, None

    @torch.no_grad()
    def on_step_end(self, trainer):
        if trainer.step < self.start:
            return
        w = trainer.model.trunk.weight
        if self.keep is None:
            weak = w.norm(dim=1).argsort()[: int(self.share * len(w))]
            self.keep = torch.ones(len(w), 1)
            self.keep[weak] = 0.0
        w.mul_(self.keep)


class UnitRows(Callback):
    """Every few steps the trunk's rows go back to unit length; `gain` carries the size."""

    def __init__(self, every):
        self.every = every

    @torch.no_grad()
    def on_step_end(self, trainer):
        if trainer.step % self.every == 0:
            w = trainer.model.trunk.weight
            w.copy_(w / w.norm(dim=1, keepdim=True))


class Ema(Callback):
    def __init__(self, model, decay):
        self.shadow, self.decay = copy.deepcopy(model).requires_grad_(False), decay

    @torch.no_grad()
    def on_step_end(self, trainer):
        for a, b in zip(self.shadow.parameters(), trainer.model.parameters()):
            a.mul_(self.decay).add_(b, alpha=1 - self.decay)


class Belt:
    """The conveyor: micro-batches without end."""

    def __init__(self, cfg, seed):
        self.cfg, self.g = cfg, torch.Generator().manual_seed(seed)
        self.w = torch.randn(cfg.features, 7, generator=self.g) / cfg.features ** 0.5

    def __iter__(self):
        while True:
            x = torch.randn(self.cfg.micro, self.cfg.features, generator=self.g)
            z = x @ self.w
            yield {"x": x, "damage": z[:, :5].argmax(1), "cost": F.softplus(2 * z[:, 5]), "label": (z[:, 6] > 0).float()}


class Trainer:
    def __init__(self, cfg, model, callbacks):
        self.cfg, self.model, self.callbacks = cfg, model, callbacks
        self.optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr * 20, momentum=0.9, nesterov=True)
        self.step, self.last = 0, {}

    def fire(self, hook):
        for cb in self.callbacks:
            getattr(cb, hook)(self)

    def fit(self, belt):
        stream = iter(belt)
        while self.step < self.cfg.steps:
            sums = dict.fromkeys(self.cfg.task_weights, 0.0)
            self.optimizer.zero_grad()
            for _ in range(self.cfg.accumulate):
                batch = next(stream)
                losses = task_losses(self.model(batch["x"]), batch)
                total = sum(self.cfg.task_weights[k] * v for k, v in losses.items())
                (total / self.cfg.accumulate).backward()
                for k, v in losses.items():
                    sums[k] += v.item() / self.cfg.accumulate
            self.optimizer.step()
            self.step += 1
            self.last = sums
            self.fire("on_step_end")
        self.fire("on_fit_end")


if __name__ == "__main__":
    torch.manual_seed(55)
    cfg = Config()
    model = Inspector(cfg)
    Trainer(cfg, model, [Console(), PruneRows(start=14, share=0.2), UnitRows(every=8), Ema(model, cfg.ema)]).fit(Belt(cfg, 56))
