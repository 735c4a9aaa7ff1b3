"""Clipping leaves next to nothing of the gradients.

## What it means

The largest norm that clipping allows is far below the norm that gradients have: a wrong unit, or gradients that are
clipped before the loss scale is taken out. Under SGD nothing is learned. Adam divides the factor out again, until the
gradients are as small as its eps.

## How it is seen

Clipping multiplies by less than 10^-5 in each of the last 32 steps, or of the last 2 where it left more than a
thousand times as much in the 64 before. Losses summed over a long batch are clipped by 10^-2 to 10^-4, and train; one
that has fallen by a tenth within these 32 steps trains too, whatever the units of its targets make of its gradients.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.outliers import finite, median
from finitune.series import Series

LONG, SUDDEN, BEFORE = 32, 2, 64
SILENT, FALL = 1e-5, 1e-3
QUARTER, LEARNS = LONG // 4, 0.9


def see(clip_factor: Series, loss: Series | None = None) -> Sighting | None:
    last = clip_factor.last
    if not 0 < last < SILENT:
        return None
    recent = clip_factor.window(LONG)
    before = finite(clip_factor.window(BEFORE, before=SUDDEN))
    long = len(recent) == LONG and all(0 < factor < SILENT for factor in recent)
    sudden = len(before) >= LONG and all(0 < factor < FALL * median(before) for factor in recent[-SUDDEN:])
    if not (long and not _falls(loss)) and not sudden:
        return None
    return Sighting(
        step=clip_factor.last_step,
        text=f"clipping multiplies the gradients by {last:.2g}",
        confirm="the largest norm that is allowed, and whether clipping comes after unscaling",
        numbers={"clip_factor": last},
    )


def _falls(loss: Series | None) -> bool:
    values = finite(loss.window(LONG)) if loss is not None else []
    return len(values) > QUARTER and 0 < median(values[-QUARTER:]) < LEARNS * median(values[:QUARTER])
