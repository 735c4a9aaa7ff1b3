"""The scale of an 8-bit float tensor does not fit what is in it.

## What happens

float8 ends at 448 (e4m3) or 57344 (e5m2), so each tensor carries a scale from its largest magnitude. A scale from
earlier steps is late for an outlier; a maximum over the wrong group of ranks differs between them; a tensor of zeros
(the B of a new adapter) gives a scale of 1/0.

## How to tell

An fp8, mxfp8 or nvfp4 recipe. The same run in bfloat16 is healthy. Sometimes only fine-tuning fails, with its zeros.

## How to prove

Run the same steps in bfloat16: finite. With current instead of delayed scaling: finite, so the history is it.

## What to do

Set a lower bound for the maximum, the right reduction group, current scaling; or use bfloat16 (use-bfloat16).

## What does not help

A lower learning rate; loss scaling, which multiplies gradients and not the tensor that saturates.

## References

NVIDIA/TransformerEngine#841 and #962, NVIDIA/Megatron-LM#442.
"""

from finitune.evidence import DECISIVE, HINT, STRONG, Tells

remedies = ["use-bfloat16", "upgrade-package"]
public_incidents = 5

tells: Tells = {
    "eight-bit-float": (DECISIVE, "a scale per tensor must follow its largest value"),
    "bfloat16-works": (HINT, "16 bits need no such scale"),
    "older-release-works": (-HINT, "a change of release is the likelier reason"),
    "eight-bit-engine": (STRONG, "that engine is there for 8-bit floats"),
}
