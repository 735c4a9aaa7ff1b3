"""An element of a weight that one flipped bit in memory has changed, told by the magnitudes of the tensor alone."""

from __future__ import annotations

import math
from collections.abc import Mapping

from finitune.facts import TensorScan, Weights

FORMATS: Mapping[str, tuple[int, int]] = {
    "float16": (16, 10), "bfloat16": (16, 7), "float32": (32, 23), "float64": (64, 52),
}  # fmt: skip
"""The bits of a number, and how many of them are its fraction (IEEE 754): above it stand the exponent and the sign. The
bits of the exponent below its upper one multiply an element of ordinary size by 16 at most.
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
    second = scan.second
    if scan.nonfinite:
        before, others = scan.lone_nan, scan.peak
    elif scan.dtype in FORMATS and second and scan.peak > ALONE * second:
        bits, fraction = FORMATS[scan.dtype]
        before, others = math.ldexp(scan.peak, -(1 << (bits - fraction - 2))), second
    else:
        return None
    return before if before is not None and others / ALONE < before <= LARGEST * others else None
