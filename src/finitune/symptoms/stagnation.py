"""Most weights do not change although they are updated: the updates round away.

## What it means

Weights kept in bfloat16 or float16 without a float32 copy cannot take a step smaller than half the distance to the
next number: in bfloat16 0.2 to 0.4 % of the weight. Training stands still, or goes on in the few weights that are
small.

## How it is seen

Of the sampled elements with a gradient, those that the update changed: less than a tenth, in 3 samples in a row, while
the rate is at least a tenth of its largest and the gradient norm a thousandth of what it was at the beginning: a
suspicion. Less than half is a note: such runs do train. In float32 nearly all change, until a model has converged.
Where the rate is not known, as of an optimizer of the program's own, it may have been lowered: it is a suspicion where
no sample of the run has seen a tenth of them change.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.outliers import finite, share_of_beginning
from finitune.series import Series

IN_A_ROW = 3
FEW, HALF = 0.1, 0.5
SHARE_OF_RATE = 0.1
CONVERGED = 1e-3
HISTORY = 512


def see(moved: Series, grad_norm: Series, lr: Series | None = None) -> Sighting | None:
    recent = moved.tail(IN_A_ROW)
    if len(recent) < IN_A_ROW or not all(0 <= share < HALF for _, share in recent):
        return None
    converged = not share_of_beginning(grad_norm, moved.last_step) > CONVERGED
    if lr is None:
        few = max(finite(moved.window(HISTORY))) < FEW
    elif not all(lr.at(step) > 0 for step, _ in recent):
        return None
    else:
        rate = SHARE_OF_RATE * max(finite(lr.window(HISTORY)))
        few = all(share < FEW and lr.at(step) >= rate for step, share in recent)
    return Sighting(
        step=moved.last_step,
        text=f"{moved.last:.2%} of the weights with a gradient changed in the update",
        level="suspicion" if few and not converged else "note",
        confirm="the dtype of the trained weights, and the same step on a float32 copy of them",
        numbers={"moved": moved.last},
    )
