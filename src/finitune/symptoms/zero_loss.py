"""The loss and all gradients are exactly zero.

## What it means

The loss is computed on nothing: all labels are ignored, the mask is empty, every reward of a group is the same, or
what was NaN is handed on as zero. Nothing is learned.

## How it is seen

Loss and gradient norm exactly zero in each of the last 8 steps, and either in all steps of a run that has at most 64,
or right after losses that were far from it: none of the 16 before them below a tenth of their median, and that not
below a thousandth of the level at the beginning. A hinge loss that has been satisfied comes to zero by and by, with
zeros between others. A loss of rewards is zero for as long as all answers earn the same: where models are called
without gradients before each step, `CALLS` times or more, as to generate text or to act, all of the first 64 steps
must be zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from finitune.chapter import Sighting
from finitune.outliers import beginning, finite, median
from finitune.series import Series

IN_A_ROW, BEFORE, START = 8, 16, 64
NEAR, CONVERGED = 0.1, 1e-3
CALLS = 4
"""Of models, per step: an evaluation comes between few steps, and a teacher or an average is called once or twice."""
KNOWN = 3
"""Of one or two losses before nobody can tell whether the zero was learned."""


def see(loss: Series, grad_norm: Series, untracked_calls: Series | None = None) -> Sighting | None:
    if loss.last != 0 or grad_norm.last != 0 or len(loss) < IN_A_ROW:
        return None
    if any(loss.window(IN_A_ROW)) or any(grad_norm.window(IN_A_ROW)):
        return None
    before = loss.window(BEFORE, before=IN_A_ROW)
    from_the_start = len(loss) <= START and not any(loss.window(START))
    acts = untracked_calls is not None and _acts(untracked_calls.since(loss.last_step - IN_A_ROW))
    if acts and (len(loss) < START or not from_the_start):
        return None
    if not from_the_start and not _is_far_from_zero(before, beginning(loss)):
        return None
    return Sighting(
        step=loss.last_step,
        text=f"loss and gradients are exactly 0 for {START if acts else IN_A_ROW} steps"
        + (", from the first on" if from_the_start else f"; the loss was {before[-1]:.4g}"),
        confirm="whether rewards differ" if acts else "how many labels of a batch are not ignored",
        numbers={"before": before[-1] if before else 0.0},
    )


def _acts(calls: Series) -> bool:
    """Of the last steps most were prepared by many calls."""
    return sum(count >= CALLS for count in calls.window(IN_A_ROW)) > IN_A_ROW / 2


def _is_far_from_zero(before: Iterable[float], head: Sequence[float]) -> bool:
    sizes = [abs(value) for value in finite(before)]
    level = median(sizes)
    return len(sizes) >= KNOWN and min(sizes) > NEAR * level and level > CONVERGED * median(map(abs, head))
