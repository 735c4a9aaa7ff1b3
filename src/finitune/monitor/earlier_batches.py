"""Earlier batches with the loss they had, to tell a model that diverges from data that changed."""

from __future__ import annotations

import math
from statistics import median

import torch
from torch import nn

from finitune.monitor.replay.capture import Capture
from finitune.monitor.replay.rerun import Setting, losses_of

KEPT = 3
RISE = 1.3
"""A damaged model has a loss on earlier batches this many times the one it had then."""
ASK_EVERY = 32


class Yardstick:
    """Keeps references to the batches of a few earlier steps: the first, then ever rarer ones."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, Capture, float]] = []
        self._next = 1
        self._asked = -ASK_EVERY

    @property
    def last_step(self) -> int:
        return self._kept[-1][0] if self._kept else 0

    def keep(self, step: int, capture: Capture, loss: float) -> None:
        """Remember this step if its turn has come and it is sound."""
        if step >= self._next and capture.runnable is None and math.isfinite(loss):
            self._kept = [*self._kept, (step, capture, loss)][-KEPT:]
            self._next = 2 * step

    def asked_at(self, step: int) -> bool:
        """True when the question was put only a few steps ago."""
        if step - self._asked < ASK_EVERY:
            return True
        self._asked = step
        return False

    def is_damaged(self, model: nn.Module) -> bool:
        """Run the earlier batches forward on the present weights and compare."""
        ratios: list[float] = []
        for _, capture, loss in self._kept:
            with torch.no_grad():
                now = sum(losses_of(Setting(model=model, capture=capture)))
            ratios.append(now / loss if loss > 0 and math.isfinite(now) else math.inf)
        return bool(ratios) and median(ratios) > RISE
