"""vtrain: the small training framework of our observatory (config tree, registries, hooks).

Experiment in this file: from the last 48 hours of tremor before an onset, predict
  * how long the volcano will repose until the next onset (Weibull), and
  * the size class of the eruption (four classes, small ... Plinian).
"""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import nn


# ------------------------------------------------------------------ registries and config
class Registry(dict):
    def register(self, name):
        def wrap(cls):
            self[name] = cls
            return cls
        return wrap

    def build(self, cfg, **extra):
        cfg = dict(cfg)
        return self[cfg.pop("type")](**cfg, **extra)


MODELS, LOSSES, HOOKS = Registry(), Registry(), Registry()

CONFIG = {
    "seed": 1815,
    "data": {"volcanoes": 9, "per_volcano": 17, "batch": 6},
    "model": {"type": "TremorNet", "width": 20, "classes": 4},
    "loss": {"type": "Weighted", "parts": [
        ({"type": "WeibullRepose"}, 1.0),
        ({"type": "SizeClass", "smoothing": 0.05}, 0.5),
    ]},
    "optim": {"lr": 4e-3, "weight_decay": 1e-3},
    "hooks": [{"type": "WarmCosine", "warm": 5}, {"type": "Clip", "limit": 5.0},
              {"type": "Console"}, {"type": "WeightEma", "decay": 0.9}],
    "iters": 40,
}


# ------------------------------------------------------------------ data
@dataclass
class Eruption:
    """One line of the catalogue; everything that costs time is computed when it is asked for."""
    volcano: int
    onset: int            # day number, as the Smithsonian writes it
    next_onset: int
    size: int
    tremor_seed: int

    @cached_property
    def rsam(self):
        g = torch.Generator().manual_seed(self.tremor_seed)
        ramp = torch.linspace(0, 1, 48) * (0.4 + 0.5 * self.size)
        return (ramp + 0.2 * torch.randn(48, generator=g)).exp()

    @cached_property
    def spectro(self):
        x = self.rsam.log()
        return torch.stack([x, x - x.roll(1), x.cumsum(0) / torch.arange(1, 49)])

    @property
    def repose(self):
        return float(self.next_onset - self.onset)


class Catalogue:
    def __init__(self, volcanoes, per_volcano, batch, generator):
        self.batch, self.g = batch, generator
        self.events = []
        for v in range(volcanoes):
            day = int(torch.randint(0, 400, (1,), generator=generator))
            scale = 60 * 1.5 ** v
            days = [day]
            for _ in range(per_volcano):
                u = torch.rand(1, generator=generator).item()
                days.append(days[-1] + 2 + int(scale * (-math.log(1 - u)) ** 0.8))
            if v == 4:      # Krafla fires: north and south fissure are two entries of the list
                days[12] = days[11]
            for a, b in zip(days, days[1:]):
                size = min(3, int(torch.rand(1, generator=generator).item() * 2 + (b - a > scale) * 1.6))
                self.events.append(Eruption(v, a, b, size, len(self.events) + 77))

    def forever(self):
        while True:
            order = torch.randperm(len(self.events), generator=self.g).tolist()
            for i in range(0, len(order) - self.batch + 1, self.batch):
                yield self.collate([self.events[j] for j in order[i:i + self.batch]])

    @staticmethod
    def collate(events):
        return {"x": torch.stack([e.spectro for e in events]),
                "volcano": torch.tensor([e.volcano for e in events]),
                "repose": torch.tensor([e.repose for e in events]),
                "size": torch.tensor([e.size for e in events])}


# ------------------------------------------------------------------ model and losses
@MODELS.register("TremorNet")
class TremorNet(nn.Module):
    def __init__(self, width, classes, volcanoes=9):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(3, width, 7, stride=2, padding=3), nn.GELU(),
                                  nn.Conv1d(width, width, 5, stride=2, padding=2), nn.GELU())
        self.site = nn.Embedding(volcanoes, width)
        self.repose_head = nn.Linear(width, 2)
        self.size_head = nn.Linear(width, classes)

    def forward(self, batch):
        h = self.conv(batch["x"]).mean(-1) + self.site(batch["volcano"])
        log_shape, log_scale = self.repose_head(h).unbind(-1)
        return {"shape": F.softplus(log_shape) + 0.3, "log_scale": log_scale + 5.0, "size": self.size_head(h)}


@LOSSES.register("WeibullRepose")
class WeibullRepose(nn.Module):
    def forward(self, out, batch):
        log_t = batch["repose"].log()
        k, z = out["shape"], log_t - out["log_scale"]
        return -(k.log() - log_t + k * z - (k * z).exp()).mean()


@LOSSES.register("SizeClass")
class SizeClass(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, out, batch):
        return F.cross_entropy(out["size"], batch["size"], label_smoothing=self.smoothing)


@LOSSES.register("Weighted")
class Weighted(nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(LOSSES.build(cfg) for cfg, _ in parts)
        self.weights = [w for _, w in parts]

    def forward(self, out, batch):
        values = [p(out, batch) for p in self.parts]
        return sum(w * v for w, v in zip(self.weights, values)), values


# ------------------------------------------------------------------ runner and hooks
class Hook:
    def before_iter(self, run): ...
    def after_backward(self, run): ...
    def after_iter(self, run): ...
    def after_run(self, run): ...


@HOOKS.register("WarmCosine")
@dataclass
class WarmCosine(Hook):
    warm: int

    def before_iter(self, run):
        t = run.iter
        f = t / self.warm if t < self.warm else 0.5 * (1 + math.cos(math.pi * t / (run.total + 1)))
        for group in run.optimizer.param_groups:
            group["lr"] = run.cfg["optim"]["lr"] * f


@HOOKS.register("Clip")
@dataclass
class Clip(Hook):
    limit: float

    def after_backward(self, run):
        nn.utils.clip_grad_norm_(run.model.parameters(), self.limit)


@HOOKS.register("WeightEma")
@dataclass
class WeightEma(Hook):
    decay: float
    shadow: dict = field(default_factory=dict)

    def after_iter(self, run):
        for n, p in run.model.named_parameters():
            old = self.shadow.setdefault(n, p.detach().clone())
            old.lerp_(p.detach(), 1 - self.decay)


@HOOKS.register("Console")
class Console(Hook):
    def after_iter(self, run):
        print(f"iter {run.iter:3d}  loss {run.loss.item():.6f}  size {run.parts[1].item():.6f}")

    def after_run(self, run):
        print(f"sum of weights {sum(p.double().sum() for p in run.model.parameters()).item():.6f}")


class Runner:
    def __init__(self, cfg):
        torch.manual_seed(cfg["seed"])
        self.cfg, self.total, self.iter = cfg, cfg["iters"], 0
        self.data = Catalogue(**cfg["data"], generator=torch.Generator().manual_seed(cfg["seed"]))
        self.model = MODELS.build(cfg["model"])
        self.criterion = LOSSES.build(cfg["loss"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **cfg["optim"])
        self.hooks = [HOOKS.build(h) for h in cfg["hooks"]]

    def call(self, point):
        for hook in self.hooks:
            getattr(hook, point)(self)

    def run(self):
        for self.iter, batch in zip(range(1, self.total + 1), self.data.forever()):
            self.call("before_iter")
            self.loss, self.parts = self.criterion(self.model(batch), batch)
            self.optimizer.zero_grad()
            self.loss.backward()
            self.call("after_backward")
            self.optimizer.step()
            self.call("after_iter")
        self.call("after_run")


if __name__ == "__main__":
    Runner(CONFIG).run()
