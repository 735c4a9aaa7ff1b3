"""All gradients are exactly zero in several steps, and the loss is not.

## What it means

Nothing can be learned: the loss does not depend on the trained weights any more (detached, clamped, taken from another
model, every label ignored, a checkpoint that cut the graph), gradients underflow in float16, or a model that was ruined
answers the same whatever it reads.

## How it is seen

In a run: the gradient norm is exactly zero in 8 steps in a row, at losses that are not zero. One such step occurs in
healthy reinforcement learning: a batch whose ratios are all clipped.

In a log. To the end: the last 10 rows have the same loss, which is not 0, and the gradient norm 0. Now and then: at
least 2 rows have the gradient norm 0 beside a loss that is not 0, other rows have a gradient, and no loss scaler skips
steps. A norm below 0.01 may have been printed as 0, and with rewards a group of equal rewards has no gradient.
"""

from __future__ import annotations

from statistics import median

from finitune.chapter import Sighting
from finitune.series import Series

IN_A_ROW = 8
SAME = 10
FEW = 2
ROUNDED = 0.01
"""What is smaller may be printed as 0.00."""


def see(grad_norm: Series, loss: Series) -> Sighting | None:
    if grad_norm.last != 0:
        return None
    norms, losses = grad_norm.window(IN_A_ROW), loss.window(IN_A_ROW)
    if len(norms) < IN_A_ROW or any(norms) or len(losses) < IN_A_ROW or not all(losses):
        return None
    return Sighting(
        step=grad_norm.last_step,
        text=f"all gradients are exactly 0 for {IN_A_ROW} steps at a loss of {loss.last:.4g}",
        confirm="whether the loss changes when a trained weight is changed by hand",
        numbers={"loss": loss.last},
    )


def review(
    loss: Series,
    grad_norm: Series,
    skipped: Series | None = None,
    loss_scale: Series | None = None,
    *,
    rewards: bool = False,
) -> Sighting | None:
    norms = dict(grad_norm.pairs())
    rows = [(step, value, norms[step]) for step, value in loss.pairs() if step in norms]
    if rewards:
        return _never(rows)
    return _to_the_end(rows) or (None if skipped or loss_scale else _now_and_then(rows))


def _never(rows: list[tuple[int, float, float]]) -> Sighting | None:
    """With rewards a gradient of 0 is usual where all answers earn the same; in every row nothing is learned."""
    if len(rows) <= SAME or any(norm for _, _, norm in rows):
        return None
    text = f"the gradient is 0 in all {len(rows):,} rows: nothing was learned"
    return Sighting(step=rows[0][0], text=text, numbers={"rows": len(rows)}, observation="never-a-gradient")


def _to_the_end(rows: list[tuple[int, float, float]]) -> Sighting | None:
    last = rows[-SAME:]
    if len(rows) <= SAME or any(norm or loss != rows[-1][1] for _, loss, norm in last) or abs(rows[-1][1]) <= ROUNDED:
        return None
    first = next(i for i in range(len(rows), -1, -1) if not i or rows[i - 1][2])
    step, loss, _ = rows[first]
    text = f"the gradient is 0 and the loss {rows[-1][1]:.4g} from step {step} to the end"
    return Sighting(step=step, text=text, numbers={"loss": loss}, observation="gradient-gone")


def _now_and_then(rows: list[tuple[int, float, float]]) -> Sighting | None:
    having = [norm for _, _, norm in rows if norm > 0]
    if not having or median(having) < ROUNDED:
        return None
    begin = next(i for i, (_, _, norm) in enumerate(rows) if norm > 0)  # a first step may be skipped
    none = [i for i, (_, loss, norm) in enumerate(rows) if i > begin and norm == 0 and abs(loss) > ROUNDED]
    if len(none) < FEW or len(none) > len(having) or none[-SAME:] == list(range(len(rows) - SAME, len(rows))):
        return None
    text = f"the gradient is exactly 0 in {len(none):,} of {len(rows):,} rows, and the loss there is not"
    return Sighting(step=rows[none[0]][0], text=text, numbers={"rows": len(none)}, observation="rows-without-gradient")
