"""What the printed learning rates say: of the schedule over bad rows, and of attempts at another rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from finitune.diagnosis.logged.rows import Rows, place_at
from finitune.observations import Observation
from finitune.rates import ANY, TINY, USUAL
from finitune.sources.logs.attempt import Attempt

LOWERED = 2.0
"""A learning rate that was lowered on purpose; schedules of one recipe differ by less at the same length."""
FEW = 3
"""So many bad rows tell whether the schedule goes on."""


def printed_learning_rate(attempt: Attempt) -> Iterator[Observation]:
    """A printed rate from which any fine-tuning with Adam fails, or one that any recipe may have."""
    rate = attempt.trace("lr")
    highest = largest(attempt)
    name = "high-learning-rate" if highest >= ANY.error else "usual-learning-rate" if highest < USUAL else None
    if name and highest:
        step = rate.steps[int(np.argmax(np.asarray(rate.values) == highest))]
        text = f"a learning rate of {highest:.3g}" + ("" if highest >= ANY.error else " at the most")
        yield Observation(name=name, text=text, place=place_at(attempt, rate, step))


def over_bad_rows(attempt: Attempt, rows: Rows, bad: npt.NDArray[np.bool_], first: int) -> Iterator[Observation]:
    """How large the rate was where it failed, and whether it went on: where updates are skipped, it does not."""
    rate = attempt.trace("lr")
    steps = rows.steps[first:][bad[first:]]
    values = rate.at(steps, math.nan)
    values = values[np.isfinite(values)]
    if not len(values):
        return
    place = place_at(attempt, rate, int(steps[0]))
    if float(np.max(rate.at(rows.steps[: first + 1], 0.0))) < TINY:
        text = f"the learning rate was {values[0]:.3g} when it failed"
        yield Observation(name="tiny-learning-rate", text=text, place=place)
    yield from printed_learning_rate(attempt)
    frozen = bool(np.all(values == values[0]))
    before = rate.at(rows.steps[:first], math.nan)
    varied = len(np.unique(before[np.isfinite(before)])) > 1
    # a schedule that is constant stands still in any case
    if len(values) >= FEW and (not frozen or varied or values[0] < TINY):
        word = "stands still" if frozen else "goes on"
        what = "the updates are skipped" if frozen else "bad updates are applied"
        text = f"the learning rate {word} over {len(values)} bad rows: {what}"
        yield Observation(name="updates-skipped" if frozen else "updates-taken", text=text, place=place)


def lowered_in_vain(last: Attempt, earlier: Sequence[Attempt]) -> Iterator[Observation]:
    """An attempt failed at one rate, and the last at a lower one."""
    rate, before = largest(last), max(map(largest, earlier), default=0.0)
    if rate and before >= LOWERED * rate:
        text = f"it failed at learning rate {before:.3g} and again at {rate:.3g}"
        place = place_at(last, last.trace("lr"), last.trace("lr").steps[0])
        yield Observation(name="lower-learning-rate-fails", text=text, place=place)


def largest(attempt: Attempt) -> float:
    return max((rate for rate in attempt.trace("lr").values if math.isfinite(rate)), default=0.0)
