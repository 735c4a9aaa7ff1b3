"""A hand-written loss, norm or clip adds up squares in float16.

## What happens

A square leaves float16 from 256 on, and a sum of many small ones too. PyTorch's own norms and losses accumulate in
float32; code of one's own that does not gives inf from finite numbers: an infinite norm clips all gradients to zero.

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

remedies = ["float32-modules"]
public_incidents = 2

tells = {
    "custom-arithmetic": (4.0, "squares and sums leave the range of float16 first"),
    "computes-float16": (2.5, "squares and sums leave it"),
    "computes-bfloat16": (-4.0, "bfloat16 has the range"),
    "smoothing": (-1.0, "smoothing is another sum"),
    "norm-infinite": (2.0, "the sum of squares overflows, not the gradient"),
}
