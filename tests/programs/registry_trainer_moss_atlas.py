"""Moss atlas classifier: registry of parts, a Trainer of our own, callbacks."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
REGISTRY: dict[str, dict[str, object]] = {"model": {}, "loss": {}, "callback": {}}


def register(kind, name):
    def keep(obj):
        REGISTRY[kind][name] = obj
        return obj
    return keep


def build(kind, name, **kw):
    return REGISTRY[kind][name](**kw)


@register("model", "leaf_cells")
class LeafCells(nn.Module):
    def __init__(self, traits: int, genera: int):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(traits, 32), nn.GELU(), nn.LayerNorm(32))
        self.genus = nn.Linear(32, genera)

    def forward(self, x):
        return self.genus(self.trunk(x))


@register("loss", "poly1")
class Poly1:
    def __init__(self, epsilon=1.0):
        self.epsilon = epsilon

    def __call__(self, logits, target):
        log_p = F.log_softmax(logits, -1)
        pt = log_p.gather(1, target[:, None]).exp().squeeze(1)
        return (F.nll_loss(log_p, target, reduction="none") + self.epsilon * (1 - pt)).mean()


class Callback:
    def on_start(self, trainer): ...
    def on_epoch(self, trainer): ...
    def on_step(self, trainer): ...


@register("callback", "printer")
class Printer(Callback):
    def on_step(self, trainer):
        print(f"epoch {trainer.epoch} step {trainer.step:2d} loss {trainer.last:.6f}")


@register("callback", "anneal")
class Anneal(Callback):
    def __init__(self, factor):
        self.factor = factor

    def on_epoch(self, trainer):
        if trainer.epoch > 1:
            for g in trainer.opt.param_groups:
                g["lr"] *= self.factor


@register("callback", "second_herbarium")
class SecondHerbarium(Callback):
    """From this epoch the sheets of the second herbarium are mixed in; it follows the newer genus list."""

    def __init__(self, at):
        self.at = at

    def on_epoch(self, trainer):
        if trainer.epoch == self.at:
            trainer.data = trainer.data + sheets(40, genera=14, seed=2)


def sheets(n, genera, seed):
    g = torch.Generator().manual_seed(seed)
    centre = torch.randn(14, 9, generator=torch.Generator().manual_seed(0))
    y = torch.randint(genera, (n,), generator=g)
    x = centre[y] + 0.5 * torch.randn(n, 9, generator=g)
    return list(zip(x, y))


class Trainer:
    def __init__(self, model, loss, callbacks, data, lr, batch=16):
        self.model, self.loss, self.callbacks, self.data, self.batch = model, loss, callbacks, data, batch
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr)
        self.step = self.epoch = 0
        self.last = float("nan")

    def fire(self, event):
        for c in self.callbacks:
            getattr(c, event)(self)

    def fit(self, epochs):
        self.fire("on_start")
        for self.epoch in range(1, epochs + 1):
            self.fire("on_epoch")
            order = torch.randperm(len(self.data)).tolist()
            for i in range(0, len(order), self.batch):
                xs, ys = zip(*(self.data[j] for j in order[i:i + self.batch]))
                logits = self.model(torch.stack(xs))
                loss = self.loss(logits, torch.stack(ys))
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                self.step += 1
                self.last = loss.item()
                self.fire("on_step")


if __name__ == "__main__":
    torch.manual_seed(12)
    Trainer(build("model", "leaf_cells", traits=9, genera=12), build("loss", "poly1", epsilon=0.5),
            [build("callback", "printer"), build("callback", "anneal", factor=0.8),
             build("callback", "second_herbarium", at=3)],
            sheets(128, genera=12, seed=1), lr=5e-3).fit(epochs=5)
