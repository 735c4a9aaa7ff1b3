"""Symptoms of an attempt whose numbers are all finite: the first that the chapters of `symptoms/` see in its log."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from finitune.chapter import Sighting, reviews, sightings
from finitune.facts import DEFAULT_LOSS_SCALE
from finitune.series import CLIMBED, Series
from finitune.sources.logs.attempt import Attempt, Trace

LEVEL, BASELINE = 5, 48
"""So many rows make a level; up to the second `symptoms/divergence` asks for no more, and a jump is sought at each."""
FROM_ONE_ROW = CLIMBED**3
"""A level of fewer rows may be a low draw: losses of single samples differ by a factor of e, seldom of 8."""
QUARTERS = 4


def trends(attempt: Attempt) -> list[Sighting]:
    """Everything that is seen in the whole attempt, by the step at which it begins."""
    seen = [*_loss_scale(attempt), *_divergence(attempt)]
    series = {name: trace.series() for name, trace in attempt.traces.items()}
    return sorted([*seen, *reviews(series, rewards=attempt.rewards)], key=lambda one: one.step)


def _loss_scale(attempt: Attempt) -> Iterator[Sighting]:
    """The loss scale fell and did not come back; overflows above the usual start only show a high start."""
    scale, skipped = attempt.trace("loss_scale"), attempt.trace("skipped")
    low = [(step, value) for step, value in zip(scale.steps, scale.values, strict=True) if value < DEFAULT_LOSS_SCALE]
    if not low:
        return
    start, first = low[0]
    kept = Trace()
    for step, value, line in zip(skipped.steps, skipped.values, skipped.lines, strict=True):
        if step >= start:
            kept.add(step, value, line)
    for one in sightings({"loss_scale": scale.series(), "skipped": kept.series()}):
        if one.symptom == "loss-scale-collapse":
            fell = f"the loss scale fell from {2 * first:g} to {scale.values[-1]:g}"
            text = f"{fell} in {int(sum(kept.values))} skipped steps and does not recover"
            yield Sighting(step=start, text=text, symptom=one.symptom, observation=one.symptom)


def _divergence(attempt: Attempt) -> Iterator[Sighting]:
    """The loss has climbed at the end, or among its first rows and not come down since; rewards have no level."""
    if attempt.rewards:
        return
    loss = attempt.trace("loss").series()
    ends = [loss, *(_first(loss, rows) for rows in range(1, min(BASELINE, len(loss))))]
    for rows, part in enumerate(ends):
        for one in sightings({"loss": part}):
            times = CLIMBED if rows > LEVEL else FROM_ONE_ROW
            if one.symptom == "divergence" and (not rows or _stays(loss, times * one.numbers["before"])):
                text = one.text if not rows else f"{one.text} at step {one.step}, and it has not come down since"
                yield Sighting(step=one.step, text=text, symptom=one.symptom, observation=one.symptom)
                return


def _first(loss: Series, rows: int) -> Series:
    return loss.until(int(loss.steps[rows - 1]))


def _stays(loss: Series, level: float) -> bool:
    """Whether the last quarter of the losses is still above it."""
    values = loss.values
    return bool(np.median(values[-max(1, len(values) // QUARTERS) :]) > level)
