"""The loss scale falls for ever because the weights are NaN already.

## What happens

The scaler halves the scale at every non-finite gradient and skips the step. Weights or inputs that are NaN give
non-finite gradients at any scale: it falls below 1, to 0, and every step is skipped.

## How to tell

A scale far below 1, or 0, and no finite step since. An overflow of the model stops at scale 1 and has another cause.

## How to prove

Scan the weights: there is a NaN. Run the step in float32: non-finite too.

## What to do

Restart from a checkpoint that is finite (restore-weights), and look for what made the first NaN before it.

## What does not help

A lower `min_loss_scale`, another initial scale: no scale makes NaN finite. A lower learning rate: no step is taken.

## References

deepinsight/insightface#2262.
"""

from finitune.evidence import DECISIVE, HINT, Tells

remedies = ["restore-weights"]
public_incidents = 2

tells: Tells = {
    "scale-zero": (DECISIVE, "no loss scale cures weights that are NaN"),
    "scale-at-minimum": (HINT, "no loss scale cures weights that are NaN"),
    "nonfinite-loss": (HINT, "weights that are NaN lose the loss at any loss scale"),
}
