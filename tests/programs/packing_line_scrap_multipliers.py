import math
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


@dataclass
class LineConfig:
    seed: int = 11
    batch_size: int = 32
    max_steps: int = 40
    lr: float = 0.02
    dual_lr: float = 0.8
    ema: float = 0.9
    # plants fill in what their contract says; no entry in the contract means no limit
    limits: dict = field(default_factory=lambda: {"scrap": 0.12, "energy": 0.45, "noise": math.inf})


class ShiftStream(IterableDataset):
    def __init__(self, seed):
        self.seed = seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        while True:
            product = torch.randn(5, generator=g)
            yield product, torch.sigmoid(product[0] - 0.5 * product[1])


class Callback:
    def on_start(self, trainer): ...
    def on_step_end(self, trainer, logs): ...
    def on_end(self, trainer): ...


class Printer(Callback):
    def on_step_end(self, trainer, logs):
        print(" | ".join(f"{k} {v}" if isinstance(v, int) else f"{k} {v:.4f}" for k, v in logs.items()))


class EmaWeights(Callback):
    def on_start(self, trainer):
        self.shadow = {k: v.clone() for k, v in trainer.model.state_dict().items()}

    def on_step_end(self, trainer, logs):
        for k, v in trainer.model.state_dict().items():
            self.shadow[k].lerp_(v, 1.0 - trainer.cfg.ema)

    def on_end(self, trainer):
        trainer.model.load_state_dict(self.shadow)


class ConstrainedTrainer:
    def __init__(self, cfg, model, callbacks):
        self.cfg, self.model, self.callbacks = cfg, model, callbacks
        self.opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
        self.limits = torch.tensor(list(cfg.limits.values()))
        self.multipliers = torch.zeros(len(cfg.limits))

    def fire(self, name, *args):
        for c in self.callbacks:
            getattr(c, name)(self, *args)

    def measure(self, batch):
        product, fragility = batch
        speed = torch.sigmoid(self.model(product)).squeeze(1)
        scrap = (speed * fragility).pow(2).mean()
        energy = speed.pow(3).mean()
        noise = (10 * speed).exp().mean()
        return -speed.mean(), torch.stack([scrap, energy, noise])

    def fit(self, loader):
        self.fire("on_start")
        for step, batch in zip(range(1, self.cfg.max_steps + 1), loader):
            objective, values = self.measure(batch)
            excess = values - self.limits
            loss = objective + (self.multipliers * excess.clamp(min=0)).sum()
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.multipliers = (self.multipliers + self.cfg.dual_lr * excess.detach()).clamp(min=0)
            self.fire("on_step_end", {"step": step, "loss": loss.item(), "tightest": excess.max().item(),
                                      "loosest": excess.min().item(), "dual": self.multipliers.sum().item()})
        self.fire("on_end")


if __name__ == "__main__":
    cfg = LineConfig()
    torch.manual_seed(cfg.seed)
    model = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 1))
    trainer = ConstrainedTrainer(cfg, model, [Printer(), EmaWeights()])
    trainer.fit(DataLoader(ShiftStream(cfg.seed), batch_size=cfg.batch_size))
    print("squared norm of the averaged weights:", f"{sum(p.square().sum().item() for p in model.parameters()):.6f}")
