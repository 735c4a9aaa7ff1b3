"""Two finite mask values are added and become -inf, or one is too large for the kernel.

## What happens

Masks that are added hold the least number of the dtype where attention is forbidden. Two of them (causal and padding)
add to -inf, and a row of -inf is NaN after the softmax; in a fused kernel a sentinel of that size is scaled again and
overflows, or its gradient grows from layer to layer.

## How to tell

An additive mask near the least number of the dtype, blocks of it over ranges of keys; boolean masks are not affected.

## How to prove

Pass the same mask as booleans, or with -1e4 in place of the least number: finite.

## What to do

Combine masks by `masked_fill` or `&`, not by adding (change-settings); or use another attention backend.

## What does not help

Clipping, a lower learning rate. float32: its least number plus itself is -inf too.

## References

huggingface/transformers#27114, pytorch/pytorch#109517.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.finding import Evidence, Origin

LARGEST = {"float16": 65504.0, "bfloat16": 3.3895e38, "float32": 3.4028e38}
"""Of each dtype; a sentinel is the least number, or a part of it."""
NEAR = 0.25
ROUNDED = 2.0**-8
"""As bfloat16 rounds."""
_SUMS = ("aten.add", "aten.sub", "aten.mul")

remedies = ["change-settings"]
public_incidents = 3

tells: Tells = {
    "mask-sentinel": (DECISIVE, "two such numbers add up to -inf"),
    "explicit-mask": (HINT, "a mask is added to the scores"),
    "rows-fully-masked": (-HINT, "rows without a key are another matter"),
    "less-tested-device": (-HINT, "on such a device any kernel is suspect"),
    "computes-float16": (HINT, "the sum of two sentinels leaves the range of float16"),
}


def weigh(origin: Origin) -> Iterator[Evidence]:
    largest = LARGEST.get(origin.dtype, 0.0)
    values = (origin.values or "").replace("-inf", "")
    if origin.phase != "forward" or origin.op not in _SUMS or "inf" in values or "nan" in values or not largest:
        yield evidence("origin", -DECISIVE, f"the first bad value is no -inf of a sum, but in {origin.op}")
        return
    yield evidence("origin", STRONG, f"{origin.op} gives -inf of finite numbers, and nothing else that is not finite")
    peak = origin.peak or 0.0
    if peak >= NEAR * largest:
        written = _is_written(peak, largest)
        text = f"{peak:.3g} goes in, {'the magnitude of the least' if written else 'a number that was computed, in'}"
        yield evidence("peak", DECISIVE if written else -STRONG, f"{text} {origin.dtype}")


def _is_written(number: float, largest: float) -> bool:
    """A number that somebody has written down: the largest, a half or quarter of it, or one with a single digit."""
    digit = 10.0 ** math.floor(math.log10(number))
    likely = (largest, largest / 2, largest / 4, round(number / digit) * digit)
    return any(math.isclose(number, one, rel_tol=ROUNDED) for one in likely)
