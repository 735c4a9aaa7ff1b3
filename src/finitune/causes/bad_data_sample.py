"""A single record spoils the step: an empty target, a NaN in cached features, a row of zeros.

## What happens

Losses that align or normalise divide by what a record offers: CTC is infinite for a target longer than its input, a
norm of zeros is zero, a cached latent may hold NaN. One such record makes the gradient of its batch non-finite, and
without a guard the weights.

## How to tell

The same step fails each time while the order of the data is fixed; with another order another step. The failure moves
with the record, in any precision.

## How to prove

Run the captured batch row by row: one row is bad by itself. Leave it out: the step is sound.

## What to do

Filter such records before training (drop-unsupervised-rows for targets), scan caches for NaN, skip non-finite steps.

## What does not help

Clipping: a NaN norm cannot be scaled. A lower learning rate: the record is as bad at any rate.

## References

espnet/espnet#2771 (empty targets), huggingface/diffusers#7563, alibaba/Pai-Megatron-Patch#366,
mravanelli/pytorch-kaldi#154.
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.finding import Evidence, Origin

remedies = ["drop-unsupervised-rows"]
public_incidents = 6

tells = {
    "empty-target": (6.0, "a row without a target"),
    "data-spoiled": (4.0, "the failure is in the data"),
    "same-step": (4.5, "it moves with the data"),
    "computes-float16": (-1.0, "float16 explains more"),
    "data-dependent": (3.0, "it moves with the data"),
    "from-the-start": (-0.5, "unless it comes first"),
    "no-target-left": (-1.5, "a matter of labels"),
    "speech": (1.5, "targets of every length, some empty"),
    "midway": (1.0, "one record among many"),
    "sudden": (1.5, "one record among many"),
    "nan-passes": (2.0, "one record among many"),
}


def weigh(origin: Origin) -> Iterator[Evidence]:
    """What the batch holds before anything is computed of it cannot come from the model."""
    if origin.phase == "input":
        yield Evidence(text=f"the batch itself holds {origin.values or 'values that are not finite'}", bits=14.0)
