"""A hand-written loss, norm or clip adds up squares in float16.

## What happens

A square leaves float16 from 256 on, and a sum of many small ones too; the square of a number below 1.7e-4 is 0, and so
is the norm of such numbers. PyTorch's own norms and losses accumulate in float32; code of one's own that does not gives
inf from finite numbers: an infinite norm clips all gradients to zero, a norm of 0 is divided by.

## How to tell

Only with the custom term. All gradients are finite, their norm is inf; or one term of the loss alone is.

## How to prove

Call `.float()` before the reduction: finite.

## What to do

Reduce in float32 (float32-modules), or use the library's function (change-settings).

## What does not help

Another loss scale or learning rate moves the point where it overflows. `nan_to_num` of the norm: clipping by inf.

## References

facebookresearch/fairscale#263.
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.finding import Evidence, Origin

remedies = ["float32-modules"]
public_incidents = 2

tells: Tells = {
    "custom-arithmetic": (STRONG, "squares and sums leave the range of float16 first"),
    "computes-float16": (STRONG, "squares and sums leave the range of float16 first"),
    "computes-bfloat16": (-STRONG, "bfloat16 has the range of float32"),
    "smoothing": (-HINT, "a smoothed loss is another sum"),
    "norm-infinite": (STRONG, "the sum of squares overflows, not the gradient"),
}

FLOAT16 = 65504.0
SUMS = (
    "aten.sum",
    "aten.add",
    "aten.mean",
    "aten.pow",
    "aten.mul",
    "aten.square",
    "aten.dot",
    "aten.linalg_vector_norm",
    "aten.cumsum",
)


def weigh(origin: Origin) -> Iterator[Evidence]:
    if origin.phase == "backward" and origin.dtype == "float16" and not origin.module and _by_zero(origin):
        yield evidence("origin", DECISIVE, f"{origin.op} of 0 in float16, in the program's own code")
        yield evidence("operator", STRONG, "the square of a number below 1.7e-4 is 0 in float16, as is their norm")
    if origin.phase != "forward" or origin.dtype != "float16" or origin.module or origin.op not in SUMS:
        return
    if origin.is_of_encoder:
        return
    yield evidence("origin", DECISIVE, f"{origin.op} overflows float16 in the program's own code, outside of the model")
    if origin.peak is not None and origin.peak < FLOAT16:
        yield evidence("operator", STRONG, f"the largest value going in is {origin.peak:.3g}, which float16 holds")


def _by_zero(origin: Origin) -> bool:
    return origin.op in ("aten.reciprocal", "aten.div") and (origin.divisor is not None or origin.peak == 0)
