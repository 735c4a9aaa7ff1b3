"""A Series: the values of one signal by step; live, from a recording or from a log alike.

A training process may have no numpy, so it is loaded only where an array is asked for.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

NEAR_ZERO = 1e-4
"""Losses of likelihoods begin far above. Those of policy gradients begin at zero and change sign: TRL's GRPO logs 1e-9
to 1e-1 of either sign in a healthy run, and a rise from zero where the divergence from a reference is added."""

CLIMBED = 2.0
"""A loss of so many times its level before has climbed: what `symptoms/divergence` asks of a run without a baseline."""
NEWEST, QUARTERS = 3, 4


BEGINNING = 64
"""The oldest values, which a series that is bounded keeps, as it keeps the newer half of what it may hold."""


class Series:
    """Steps (strictly increasing) and their values (any float, NaN and infinities included).

    With `most` it never holds more values than that: of those between its beginning and its newer half every second
    is dropped when it is full, so that the memory of a run does not grow with its length.
    """

    __slots__ = ("_begin", "_most", "_steps", "_values")

    def __init__(self, steps: Iterable[int] = (), values: Iterable[float] = (), *, most: int | None = None) -> None:
        self._most = most
        self._begin = 0  # where what is shared with another series begins to be this one's
        self._steps = array("q", steps)
        self._values = array("d", values)
        if len(self._steps) != len(self._values):
            raise ValueError(f"{len(self._steps)} steps but {len(self._values)} values")
        if any(later <= earlier for earlier, later in pairwise(self._steps)):
            raise ValueError("steps of a Series must increase")

    def add(self, step: int, value: float) -> None:
        """Append one value; a step seen before replaces its value and drops all later ones (a resumed run)."""
        if self._begin:
            raise ValueError("what came since a step is read, and shares the values of its series")
        while self._steps and self._steps[-1] >= step:
            self._steps.pop()
            self._values.pop()
        self._steps.append(step)
        self._values.append(value)
        if self._most is not None and len(self._steps) > self._most:
            old = slice(BEGINNING, self._most // 2, 2)
            del self._steps[old], self._values[old]

    def __len__(self) -> int:
        return len(self._steps) - self._begin

    def __bool__(self) -> bool:
        return len(self._steps) > self._begin

    def __repr__(self) -> str:
        return f"Series({len(self)} steps, last {self.last_step}: {self.last})"

    @property
    def last(self) -> float:
        """The newest value; NaN when empty."""
        return self._values[-1] if self else math.nan

    @property
    def first(self) -> float:
        """The oldest value; NaN when empty."""
        return self._values[self._begin] if self else math.nan

    @property
    def last_step(self) -> int:
        """The newest step; -1 when empty."""
        return self._steps[-1] if len(self._steps) > self._begin else -1

    @property
    def steps(self) -> npt.NDArray[np.int64]:
        """All steps, as an array of their own."""
        import numpy as np

        return np.array(self._steps[self._begin :], dtype=np.int64)

    @property
    def values(self) -> Floats:
        """All values, as an array of their own."""
        import numpy as np

        return np.array(self._values[self._begin :], dtype=np.float64)

    def window(self, size: int, *, before: int = 0) -> array[float]:
        """The newest `size` values before the newest `before`, oldest first; fewer when there are fewer."""
        stop = max(len(self._values) - before, self._begin)
        return self._values[max(stop - size, self._begin) : stop]

    def head(self, size: int) -> array[float]:
        """The oldest `size` values, oldest first; fewer when there are fewer."""
        return self._values[self._begin : self._begin + size]

    def until(self, step: int) -> Series:
        """The same series as it was right after `step`."""
        out, stop = Series(), bisect_right(self._steps, step, self._begin)
        out._steps, out._values = self._steps[self._begin : stop], self._values[self._begin : stop]
        return out

    def since(self, step: int) -> Series:
        """What came after `step`, found by binary search; not copied, so to be read before this series grows."""
        out = Series()
        out._steps, out._values, out._begin = self._steps, self._values, bisect_right(self._steps, step, self._begin)
        return out if out._begin else self

    def last_where(self, holds: Callable[[float], bool]) -> int | None:
        """The newest step whose value `holds`; looked for from the end."""
        found = (n for n in range(len(self._steps) - 1, self._begin - 1, -1) if holds(self._values[n]))
        place = next(found, None)
        return None if place is None else self._steps[place]

    def tail(self, size: int) -> list[tuple[int, float]]:
        """(step, value) of the newest `size`, oldest first; fewer when there are fewer."""
        start = max(len(self._steps) - size, self._begin)
        return list(zip(self._steps[start:], self._values[start:], strict=True))

    def at(self, step: int) -> float:
        """The value at `step`; NaN where there is none."""
        index = bisect_left(self._steps, step, self._begin)
        return self._values[index] if index < len(self._steps) and self._steps[index] == step else math.nan

    def pairs(self) -> list[tuple[int, float]]:
        """(step, value), oldest first."""
        return list(zip(self._steps[self._begin :], self._values[self._begin :], strict=True))


def lowest_level(losses: Iterable[float]) -> float | None:
    """The lowest loss, oldest first, of which a later one may be a multiple; None where multiples say nothing.

    Left out are values that are not finite, and zeros: a printed 0 hides NaN, or no label counted.
    """
    known = [loss for loss in losses if loss and math.isfinite(loss)]
    if not known or known[0] < NEAR_ZERO or min(known) < 0:
        return None
    return float(min(known))


def peak(losses: Sequence[float]) -> float:
    """How many times its first the loss was at its highest, `NEWEST` times in a row; 0 where no multiple tells it."""
    if len(losses) < NEWEST or not min(losses) > 0:
        return 0.0
    windows = (losses[at : at + NEWEST] for at in range(len(losses) - NEWEST + 1))
    return max(map(min, windows)) / losses[0]


def climb(losses: Iterable[float]) -> float | None:
    """How many times its level before the newest losses are, oldest first; None where no multiple tells it.

    The newest are the last three, by their median. The level before is the first loss, or the median of the lowest
    quarter of the run, so that noise makes no climb. Below eight losses, the highest is compared with the first.
    Where no multiple tells it, as of losses of both signs, it is 1 while the newest are at the lowest level of the run.
    """
    known = [loss for loss in losses if loss and math.isfinite(loss)]
    if len(known) >= 2 * QUARTERS and lowest_level(known) is None:
        return 1.0 if median(known[-NEWEST:]) <= min(_medians_of_quarters(known)) else None
    if len(known) < 2 or lowest_level(known) is None:
        return None
    if len(known) < 2 * QUARTERS:
        return max(known) / known[0]
    return median(known[-NEWEST:]) / min(known[0], *_medians_of_quarters(known))


def climbs_evenly(values: Sequence[float]) -> bool:
    """Whether the last rise of positive values, as a power, is at most twice each of the two before it. So it is where
    a learning rate beyond 2 over the curvature multiplies an error in each step (Cohen et al. 2021, arXiv:2103.00065),
    and not where one batch is an outlier. Rises are those of the highest of `NEWEST` values.
    """
    if len(values) < 4 * NEWEST or min(values) <= 0:
        return False
    peaks = [math.log(max(values[len(values) - NEWEST * n :][:NEWEST])) for n in range(4, 0, -1)]
    rises = [later - earlier for earlier, later in pairwise(peaks)]
    return min(rises) > 0 and rises[-1] <= 2 * min(rises[:-1])


def usual_low(losses: Iterable[float]) -> float | None:
    """The level that a run had reached, noise of single batches left out: the median of its lowest quarter; below eight
    losses the lowest. None where multiples say nothing.
    """
    known = [loss for loss in losses if loss and math.isfinite(loss)]
    if lowest_level(known) is None:
        return None
    return min(known) if len(known) < 2 * QUARTERS else min(_medians_of_quarters(known))


def _medians_of_quarters(known: Sequence[float]) -> list[float]:
    size = len(known) // QUARTERS
    return [median(known[at : at + size]) for at in range(0, size * QUARTERS, size)]


def noise(losses: Iterable[float]) -> float | None:
    """How far apart two neighbours of the series are, as a rule: the median distance of their logarithms, which no
    single outlier moves. None below five values.
    """
    known = [math.log(loss) for loss in losses if loss > 0 and math.isfinite(loss)]
    return median(abs(later - earlier) for earlier, later in pairwise(known)) if len(known) > QUARTERS else None


BEYOND_NOISE = 3.0
"""A climb is more than so many usual differences of two neighbours: the largest of a few equal batches is about two."""
IN_A_ROW = 3
"""Rises at the end, one after the other, of which noise makes one in 24."""


def is_noise(losses: Sequence[float], ratio: float, *, each: bool) -> bool:
    """Whether the batches differ so much from one another that a climb by `ratio` says nothing.

    Below five losses nothing is known of their noise: then those of single batches (`each`) are taken for it.
    """
    newest = losses[-IN_A_ROW - 1 :]
    rising = len(newest) > IN_A_ROW and all(a < b for a, b in pairwise(newest))
    usual = noise(losses)
    return not rising and (each if usual is None else math.log(ratio) <= BEYOND_NOISE * usual)


Signals = Mapping[str, Series]
"""Signal name -> Series; `finitune.signals` names them."""
