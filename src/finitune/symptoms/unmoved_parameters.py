"""Some trained tensors never change although they have a gradient.

## What it means

The optimizer holds other tensors than the model uses (made before the model was moved, wrapped, resized or tied), or a
kernel writes to a copy.

## How it is seen

Tensors in float32 with a gradient, none of whose sampled elements changed, in 3 samples in a row, while the gradient
norm is at least a thousandth of what it was at the beginning (a model that has converged stands still) and the median
update is at least 10^-5 of the weights: at the rates of a long warm-up even float32 rounds away what a weight of 1
gets. In bfloat16 and float16 an update may round away at any rate: that is stagnation.
"""

from __future__ import annotations

from finitune.chapter import Sighting
from finitune.outliers import share_of_beginning
from finitune.series import Series

IN_A_ROW = 3
CONVERGED = 1e-3
FELT = 1e-5


def see(unmoved_tensors: Series, update_ratio: Series, grad_norm: Series) -> Sighting | None:
    recent = unmoved_tensors.tail(IN_A_ROW)
    if len(recent) < IN_A_ROW or not all(count >= 1 and update_ratio.at(step) >= FELT for step, count in recent):
        return None
    if not share_of_beginning(grad_norm, unmoved_tensors.last_step) > CONVERGED:
        return None
    return Sighting(
        step=unmoved_tensors.last_step,
        text=f"{unmoved_tensors.last:.0f} trained tensors have a gradient and do not change",
        confirm="whether these tensors are in a parameter group of the optimizer, by identity",
        numbers={"unmoved_tensors": unmoved_tensors.last},
    )
