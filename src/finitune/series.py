"""Signals: one number per step, held in a Series; live, from a recording or from a log alike."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NEAR_ZERO = 1e-4
"""Losses of likelihoods begin far above. Those of policy gradients begin at zero and change sign: TRL's GRPO logs 1e-9
to 1e-1 of either sign in a sound run, and a rise from zero where the divergence from a reference is added."""


class Series:
    """Steps (strictly increasing) and their values (any float, NaN and infinities included)."""

    __slots__ = ("_steps", "_values")

    def __init__(self, steps: Iterable[int] = (), values: Iterable[float] = ()) -> None:
        self._steps = array("q", steps)
        self._values = array("d", values)
        if len(self._steps) != len(self._values):
            raise ValueError(f"{len(self._steps)} steps but {len(self._values)} values")
        if (np.diff(np.asarray(self._steps)) <= 0).any():
            raise ValueError("steps of a Series must increase")

    def add(self, step: int, value: float) -> None:
        """Append one value; a step seen before replaces its value and drops all later ones (a resumed run)."""
        while self._steps and self._steps[-1] >= step:
            self._steps.pop()
            self._values.pop()
        self._steps.append(step)
        self._values.append(value)

    def __len__(self) -> int:
        return len(self._steps)

    def __bool__(self) -> bool:
        return bool(self._steps)

    def __repr__(self) -> str:
        return f"Series({len(self)} steps, last {self.last_step}: {self.last})"

    @property
    def last(self) -> float:
        """The newest value; NaN when empty."""
        return self._values[-1] if self._values else math.nan

    @property
    def first(self) -> float:
        """The oldest value; NaN when empty."""
        return self._values[0] if self._values else math.nan

    @property
    def last_step(self) -> int:
        """The newest step; -1 when empty."""
        return self._steps[-1] if self._steps else -1

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        return np.array(self._steps, dtype=np.int64)

    @property
    def values(self) -> Floats:
        return np.array(self._values, dtype=np.float64)

    def window(self, size: int) -> Floats:
        """The newest `size` values, oldest first; fewer when there are fewer."""
        return np.array(self._values[max(len(self) - size, 0) :], dtype=np.float64)

    def until(self, step: int) -> Series:
        """The same series as it was right after `step`."""
        count = int(np.searchsorted(self.steps, step, side="right"))
        out = Series()
        out._steps, out._values = self._steps[:count], self._values[:count]
        return out


def lowest_level(losses: Floats) -> float | None:
    """The lowest loss, oldest first, of which a later one may be a multiple; None where multiples say nothing.

    Left out are values that are not finite, and zeros: a printed 0 hides NaN, or no label counted.
    """
    known = losses[np.isfinite(losses) & (losses != 0)]
    if not len(known) or known[0] < NEAR_ZERO or known.min() < 0:
        return None
    return float(known.min())


def climb(losses: Floats) -> float | None:
    """How many times the lowest loss before it, or the first, a later one is; None where no multiple tells it."""
    losses = losses[np.isfinite(losses)]
    if not len(losses) or (lowest := lowest_level(losses)) is None:
        return None
    since = losses[int((losses == lowest).argmax()) :].max() / lowest
    return float(max(since, losses.max() / losses[losses != 0][0]))


Signals = Mapping[str, Series]
"""Signal name -> Series. Names: loss, grad_norm (before clipping), lr, loss_scale, skipped (0 or 1), bad_update
(1 where the optimizer spoiled the weights), and reduction_error (see `finitune.monitor.reduction`)."""
