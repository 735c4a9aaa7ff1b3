"""Two finite mask values are added and become -inf, or one is too large for the kernel.

## What happens

Masks that are added hold the least number of the dtype where attention is forbidden. Two of them (causal and padding)
add to -inf, and a row of -inf is NaN after the softmax; in a fused kernel a sentinel of that size is scaled again and
overflows, or its gradient grows from layer to layer.

## How to tell

An additive mask near the least number of the dtype, blocks of it over whole ranges of keys; a boolean mask is sound.

## How to prove

Pass the same mask as booleans, or with -1e4 in place of the least number: sound.

## What to do

Combine masks by `masked_fill` or `&`, not by adding (change-settings); another attention backend.

## What does not help

Clipping, a lower learning rate. float32: its least number plus itself is -inf too.

## References

huggingface/transformers#27114, pytorch/pytorch#109517.
"""

from finitune.evidence import DECISIVE, HINT, Tells

remedies = ["upgrade-package"]
public_incidents = 3

tells: Tells = {
    "mask-sentinel": (DECISIVE, "two such numbers add up to -inf"),
    "explicit-mask": (HINT, "a mask is added to the scores"),
    "rows-fully-masked": (-HINT, "rows without a key are another matter"),
    "less-tested-device": (-HINT, "on such a device any kernel is suspect"),
    "computes-float16": (HINT, "the sum of two sentinels leaves the range of float16"),
}
