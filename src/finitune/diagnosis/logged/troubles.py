"""What went wrong in an attempt, the first and gravest: numbers that are not finite, or a trend for the worse."""

from __future__ import annotations

import math

import numpy as np

from finitune.chapter import sightings
from finitune.diagnosis.logged.signs import (
    CONVERGED,
    RECOVERED,
    Rows,
    Sign,
    Trouble,
    high_rate,
    jumped,
    numbers_lost,
    place_at,
    rows_of,
)
from finitune.diagnosis.logged.standstill import standstill
from finitune.facts import DEFAULT_LOSS_SCALE
from finitune.series import WORSE_THAN_CHANCE
from finitune.sources.logs.attempt import Attempt, Trace

NOT_FALLING, RISEN = 0.75, 1.1
"""Of the level at the beginning."""
FEW = 2
"""So many rows without a gradient are no accident."""
ROUNDED = 0.01
"""Where norms are smaller than this, one that is printed as 0.000 may be none."""
DEAD = 10
"""So many rows with one and the same loss and no gradient."""


def trouble_of(attempt: Attempt, *, ended: bool = False, ruinous: Sign | None = None) -> Trouble | None:
    """What went wrong, the first and gravest; None for an attempt that is healthy.

    `ended`: an error ended it; `ruinous`: its configuration has a setting that is known to ruin a model.
    """
    rows = rows_of(attempt)
    return (
        numbers_lost(attempt, rows)
        or loss_scale_fell(attempt)
        or gradient_gone(attempt, rows)
        or rows_without_gradient(attempt, rows)
        or loss_climbed(attempt, ended=ended, ruinous=ruinous)
        or evaluation_lost(attempt)
        or standstill(attempt)
    )


def loss_scale_fell(attempt: Attempt) -> Trouble | None:
    """The loss scale fell and did not come back; overflows above the usual start only show a high start."""
    scale, skipped = attempt.trace("loss_scale"), attempt.trace("skipped")
    low = [(s, v) for s, v in zip(scale.steps, scale.values, strict=True) if v < DEFAULT_LOSS_SCALE]
    if not low or not len(skipped):
        return None
    start = low[0][0]
    kept = Trace()
    for step, value, line in zip(skipped.steps, skipped.values, skipped.lines, strict=True):
        if step >= start:
            kept.add(step, value, line)
    seen = [s for s in sightings({"loss_scale": scale.series(), "skipped": kept.series()})
            if s.symptom == "loss-scale-collapse"]  # fmt: skip
    if not seen:
        return None
    last = skipped.steps[-1]
    place = f"{attempt.file}:{skipped.line_at(start)}-{skipped.line_at(last)}"
    lost = int(sum(kept.values))
    fell = f"the loss scale fell from {2 * low[0][1]:g} to {scale.values[-1]:g}"
    text = f"{fell} in {lost} skipped steps and does not recover"
    signs = {"scale-fell": Sign(name="scale-fell", text=text, place=place)}
    sound = sum(1 for value in skipped.values if not value)
    if not sound:
        signs["from-the-start"] = Sign(name="from-the-start", text="no step before it was sound", place=place)
    return Trouble(symptom="loss-scale-collapse", step=start, text=text, place=place, signs=signs, last_good=None)


def gradient_gone(attempt: Attempt, rows: Rows) -> Trouble | None:
    """One and the same loss to the end, and no gradient: nothing is learned any more."""
    last = slice(len(rows.steps) - DEAD, None)
    if attempt.rewards or len(rows.steps) <= DEAD or rows.norm[last].any() or rows.loss[-1] <= CONVERGED:
        return None
    if not (rows.loss[last] == rows.loss[-1]).all():
        return None
    first = int(np.flatnonzero(rows.norm)[-1]) + 1 if rows.norm.any() else 0
    step = int(rows.steps[first])
    text = f"the gradient is 0 and the loss {rows.loss[-1]:.4g} from step {step} to the end"
    place = place_at(attempt, attempt.trace("loss"), step)
    signs = [Sign(name="dead", text=text, place=place), jumped(attempt, rows, first), high_rate(attempt)]
    named = {sign.name: sign for sign in signs if sign}
    return Trouble(symptom="zero-gradient", step=step, text=text, place=place, signs=named,
                   last_good=int(rows.steps[first - 1]) if first else None)  # fmt: skip


def rows_without_gradient(attempt: Attempt, rows: Rows) -> Trouble | None:
    """Now and then the gradient is exactly 0 beside a loss that is not: what was NaN is printed as a mean of others."""
    if attempt.rewards or len(attempt.trace("skipped")) or len(attempt.trace("loss_scale")):
        return None
    sound = rows.has_norm & (rows.norm > 0)
    none = rows.has_norm & (rows.norm == 0) & (rows.loss > CONVERGED)
    if not sound.any() or np.median(rows.norm[sound]) < ROUNDED:
        return None
    none[: int(np.argmax(sound))] = False  # a first step may be skipped
    if none.sum() < FEW or none.sum() > sound.sum() or none[-DEAD:].all():
        return None
    step = int(rows.steps[np.argmax(none)])
    text = f"the gradient is exactly 0 in {int(none.sum()):,} of {len(none):,} rows, and the loss there is not"
    place = place_at(attempt, attempt.trace("grad_norm"), step)
    sign = Sign(name="rows-without-gradient", text=text, place=place)
    return Trouble(symptom="zero-gradient", step=step, text=text, place=place, signs={sign.name: sign})


def loss_climbed(attempt: Attempt, *, ended: bool, ruinous: Sign | None = None) -> Trouble | None:
    """The loss went up and stayed there; in reinforcement learning it has no level."""
    loss = attempt.trace("loss")
    if attempt.rewards or not len(loss) or (ended and len(loss) < RECOVERED):
        return None
    high = high_rate(attempt) or ruinous
    seen = [s.text for s in sightings({"loss": loss.series()}) if s.symptom == "divergence"]
    values = np.asarray(loss.values)
    quarter = max(RECOVERED, len(values) // 4)
    low, late = float(np.min(values[:quarter])), float(np.median(values[-quarter:]))
    if not seen and len(values) > RECOVERED and low > 0:
        if late > WORSE_THAN_CHANCE and late > 2 * low:
            seen = [f"loss {late:.4g} at the end, {late / low:.2g} times its level before and worse than guessing"]
        elif (
            len(values) > 2 * RECOVERED and low > WORSE_THAN_CHANCE and late > NOT_FALLING * np.median(values[:quarter])
        ):
            seen = [f"loss {late:.4g} and not falling, worse than guessing from the first row"]
        elif high and values[len(values) // 2 :].min() > values[0] and (ruinous or late > RISEN * values[0]):
            seen = [f"loss {late:.4g} at the end, above {values[0]:.4g} of the first row"]
    if not seen and ruinous and low > WORSE_THAN_CHANCE:
        seen = [f"loss {late:.4g} at the end and never below {low:.4g}, worse than guessing"]
    if not seen:
        return None
    step = int(loss.steps[-1])
    place = place_at(attempt, loss, step)
    signs = {"diverged": Sign(name="diverged", text=seen[0], place=place)} | ({high.name: high} if high else {})
    return Trouble(symptom="divergence", step=step, text=seen[0], place=place, signs=signs)


def evaluation_lost(attempt: Attempt) -> Trouble | None:
    trace = attempt.trace("eval_loss")
    bad = [(s, v) for s, v in zip(trace.steps, trace.values, strict=True) if not math.isfinite(v)]
    if not bad:
        return None
    step, value = bad[0]
    place = place_at(attempt, trace, step)
    text = f"the loss of evaluation is {value} at step {step}, that of training is finite"
    return Trouble(symptom="nonfinite-evaluation", step=step, text=text, place=place,
                   signs={"evaluation-only": Sign(name="evaluation-only", text=text, place=place)})  # fmt: skip
