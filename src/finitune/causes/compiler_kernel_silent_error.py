"""A fused or hand-written kernel is wrong without saying so.

## What happens

Fused kernels index memory by themselves: offsets in 32 bits wrap beyond 2^31 elements, a block that runs over the end
of a vocabulary reads what lies behind it. The numbers are finite and wrong, or the device reports an illegal access.

## How to tell

A tensor of more than 2^31 elements (tokens times vocabulary, experts times width), a vocabulary that is no multiple
of the block. The unfused operation gives other numbers.

## How to prove

Run the operation unfused in float32 on the same input and compare, at the size of the run.

## What to do

Switch the fused kernel off (change-settings), or install a later release of its package (upgrade-package).

## What does not help

A lower learning rate, clipping, other data. `nan_to_num`: the numbers are finite.

## References

linkedin/Liger-Kernel#1296 (offsets in 32 bits), fla-org/flash-linear-attention#1082.
"""

from finitune.evidence import HINT, STRONG, Tells

remedies = ["upgrade-package"]
public_incidents = 5
unseen = "whether a kernel computes what it should"

tells: Tells = {
    "own-kernel": (STRONG, "a fused kernel may be wrong without any NaN"),
    "illegal-access": (STRONG, "an offset beyond 2^31 or a tail that is not masked reads outside the array"),
    "fused-kernel-fails": (HINT, "only the fused kernel fails"),
    "kernel-level": (HINT, "one kernel is reported by itself"),
    "labels-ignored": (-HINT, "a mean over no label is another matter"),
}
