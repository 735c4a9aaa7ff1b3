"""One earlier batch with the loss it had, to tell a model that diverges from data that changed."""

from __future__ import annotations

import math

import torch
from torch import nn

from finitune.monitor.replay.capture import Capture
from finitune.monitor.replay.rerun import Setting, losses_of

RISE = 1.3
"""A damaged model has a loss on an earlier batch this many times the one it had then."""
ASK_EVERY = 32


class EarlierBatch:
    """Keeps references to one micro-batch of an earlier step: of the first, then of ever rarer ones."""

    def __init__(self) -> None:
        self._kept: tuple[int, Capture, float] | None = None
        self._next = 1
        self._asked = -ASK_EVERY

    @property
    def step(self) -> int:
        return self._kept[0] if self._kept else 0

    def keep(self, step: int, capture: Capture, losses: tuple[float, ...]) -> None:
        """Remember the first micro-batch of this step if its turn has come and it is finite."""
        if step < self._next or not losses or not math.isfinite(losses[0]):
            return
        one = Capture(micro_steps=capture.micro_steps[:1])
        if one.runnable is None:
            self._kept = (step, one, losses[0])
            self._next = 2 * step

    def asked_at(self, step: int) -> bool:
        """True when the question was put only a few steps ago."""
        if step - self._asked < ASK_EVERY:
            return True
        self._asked = step
        return False

    def is_damaged(self, model: nn.Module) -> bool | None:
        """Run the earlier batch forward on the present weights and compare; None where that is not possible."""
        if self._kept is None:
            return None
        _, capture, loss = self._kept
        if capture.runnable is not None or not loss > 0:
            return None
        try:
            with torch.no_grad():
                now = sum(losses_of(Setting(model=model, capture=capture)))
        except Exception:
            return None
        return not math.isfinite(now) or now / loss > RISE
