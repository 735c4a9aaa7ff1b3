"""The optimizer steps, gradients are there, and the weights stay where they were.

## What it means

Something between gradient and weight makes the update vanish: an eps far above the gradients, clipping to next to
nothing, a rate that is zero where it counts, moments that hold one huge value.

## How it is seen

The norm of the update over the norm of the weights, sampled. Below 6e-8 (half a unit in the last place of float32: the
whole update rounds away) in 2 samples in a row, while the rate is at least a tenth of its largest and the gradient
norm a thousandth of what it was at the beginning. Or a thirtieth of what it was: of the median of 16 samples before,
in 2 in a row, for both ratio / rate (that of Adam) and ratio / (rate x gradient norm) (that of SGD, whose steps shrink
with the gradient), while the gradient norm is a tenth of what it was at the beginning: steps of Rprop and of line
searches shrink by themselves where a run has converged. Norms from before an outlier are not kept; they count as the
present one.
"""

from __future__ import annotations

import math

from finitune.chapter import Sighting
from finitune.outliers import finite, median, share_of_beginning
from finitune.series import Series

IN_A_ROW, BEFORE, KNOWN = 2, 16, 4
ROUNDS_AWAY = 2.0**-24
COLLAPSE = 1 / 30
SHARE_OF_RATE, CONVERGED, CONVERGING = 0.1, 1e-3, 0.1
HISTORY = 512


def see(update_ratio: Series, lr: Series, grad_norm: Series) -> Sighting | None:
    newest = update_ratio.tail(BEFORE + IN_A_ROW)
    if len(newest) < IN_A_ROW:
        return None
    now = grad_norm.at(newest[-1][0])
    norms = [norm if (norm := grad_norm.at(step)) == norm else now for step, _ in newest]
    rows = [(ratio, lr.at(step), norm) for (step, ratio), norm in zip(newest, norms, strict=True)]
    known = [row for row in rows if all(map(math.isfinite, row)) and row[1] > 0 and row[2] > 0]
    if len(known) < IN_A_ROW or known[-IN_A_ROW:] != rows[-IN_A_ROW:]:
        return None
    earlier, recent = known[:-IN_A_ROW], known[-IN_A_ROW:]
    ratio, rate, norm = recent[-1]
    largest_rate = max(finite(lr.window(HISTORY)))
    left = share_of_beginning(grad_norm, update_ratio.last_step)
    gone = left > CONVERGED and all(one < ROUNDS_AWAY and r >= SHARE_OF_RATE * largest_rate for one, r, _ in recent)
    fell = (
        left > CONVERGING
        and len(earlier) >= KNOWN
        and all(
            one / r < COLLAPSE * median(e / er for e, er, _ in earlier)
            and one / r / n < COLLAPSE * median(e / er / en for e, er, en in earlier)
            for one, r, n in recent
        )
    )
    if not gone and not fell:
        return None
    return Sighting(
        step=update_ratio.last_step,
        text=f"the update is {ratio:.2g} of the weights at a rate of {rate:.3g} and a gradient norm of {norm:.3g}",
        confirm="eps and the largest norm that clipping allows, beside the size of the gradients",
        numbers={"update_ratio": ratio, "lr": rate, "grad_norm": norm},
    )
