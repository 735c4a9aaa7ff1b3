"""An element of a weight that one flipped bit in memory has changed, told by the magnitudes of the tensor alone."""

from __future__ import annotations

import math
from collections.abc import Mapping

from finitune.facts import TensorScan, Weights

UPPER_BIT: Mapping[str, int] = {"float16": 16, "bfloat16": 128, "float32": 128, "float64": 1024}
"""By which power of two the upper bit of the exponent multiplies: half of what the exponent counts to (IEEE 754). The
bits below it multiply an element of ordinary size by 16 at most.
"""
ALONE = 1024.0
"""Such an element is as many times larger than every other of its tensor, which the bits below cannot make it."""
LARGEST = 4.0
"""By itself it may have been the largest, by that factor."""


def flipped(weights: Weights | None) -> tuple[TensorScan, float] | None:
    """The first tensor with such an element, and the magnitude that it has with that bit the other way, where it is one
    among the others again.
    """
    for scan in weights.tensors if weights is not None else ():
        before = _before(scan)
        if before is not None:
            return scan, before
    return None


def in_words(scan: TensorScan) -> str:
    """What is seen of the element."""
    if scan.nonfinite:
        return f"one NaN that no arithmetic makes, among weights up to {scan.peak:.3g}"
    return f"one weight of {scan.peak:.3g}, no other above {scan.second:.3g}"


def _before(scan: TensorScan) -> float | None:
    power, second = UPPER_BIT.get(scan.dtype), scan.second
    if scan.nonfinite:
        before, others = scan.lone_nan, scan.peak
    elif power is not None and second and scan.peak > ALONE * second:
        before, others = math.ldexp(scan.peak, -power), second
    else:
        return None
    return before if before is not None and others / ALONE < before <= LARGEST * others else None
