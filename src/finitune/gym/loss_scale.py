"""Dynamic loss scaling as DeepSpeed does it, down to its log lines and its last words.

After deepspeed/runtime/fp16/loss_scaler.py, whose defaults a DeepSpeed JSON with `fp16.enabled` gives: 2^16, window
1000, hysteresis 2 (refilled only when the scale grows), minimum 1. From a fresh start 18 overflows in a row end the
run: one is taken by the hysteresis, 16 halve the scale, the last raises.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from finitune.facts import DEFAULT_LOSS_SCALE

SCALE_FACTOR = 2.0
LAST_WORDS = "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class DynamicLossScaler:
    """The scale and what it remembers. `window` is in optimizer steps; `rank` is only printed."""

    scale: float = DEFAULT_LOSS_SCALE
    window: int = 1000
    hysteresis: int = 2
    min_scale: float = 1.0
    rank: int = 0
    patience: int | None = None
    """Overflows that may still pass before the scale falls; None stands for all of `hysteresis`."""
    step: int = 0
    last_overflow: int = -1

    def update(self, *, overflow: bool) -> None:
        """Count one step. Raises Exception, the very class that DeepSpeed raises, on an overflow at the minimum."""
        if self.patience is None:
            self.patience = self.hysteresis
        if overflow:
            self._shrink()
            self.last_overflow = self.step
        else:
            finite = self.step - self.last_overflow - 1
            if finite > 0 and finite % self.window == 0:
                self.patience = self.hysteresis
                self.scale *= SCALE_FACTOR
        self.step += 1

    def _shrink(self) -> None:
        assert self.patience is not None
        tried = f"[deepspeed] OVERFLOW! Rank {self.rank} Skipping step. Attempted loss scale: {int(self.scale)}"
        if self.patience > 1:
            log.info("%s, but hysteresis is %d. Reducing hysteresis to %d", tried, self.patience, self.patience - 1)
            self.patience -= 1
            return
        if self.scale == self.min_scale:
            raise Exception(LAST_WORDS)  # noqa: TRY002
        reduced = max(self.scale / SCALE_FACTOR, self.min_scale)
        log.info("%s, reducing to %d", tried, int(reduced))
        self.scale = reduced
