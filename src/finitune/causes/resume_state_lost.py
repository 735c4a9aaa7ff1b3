"""A resumed run has its weights back and not the state around them.

## What happens

Adam's moments, the schedule, the loss scale and the order of the data are part of a run. Where one of them starts
anew, the first updates are of full size against weights that are nearly done, the rate jumps, or batches are seen
twice.

## How to tell

Loss or gradient norm spike right after the resume; the learning rate is that of the start; the moments are empty. The
run without the interruption is healthy.

## How to prove

Save and resume at once: the next loss must be what it would have been, to rounding.

## What to do

Save and verify the whole state; where it is lost, warm up again (lower-learning-rate, restore-weights).

## What does not help

Clipping hides the size of the first updates, not their direction. Another seed.

## References

NVIDIA-NeMo/Automodel#763, Lightning-AI/pytorch-lightning#10766, PolymathicAI/the_well#77.
"""

from finitune.evidence import HINT, STRONG, Tells

remedies = ["restore-weights", "lower-learning-rate"]
public_incidents = 4

tells: Tells = {
    "resumed": (STRONG, "optimizer, schedule and loss scale must come back with the weights"),
    "state-missing": (STRONG, "moments, schedule or loss scale begin anew"),
    "worse-after-load": (HINT, "it begins at the restart"),
    "unscale-fp16-gradients": (-STRONG, "the dtype of the weights is the matter"),
}
