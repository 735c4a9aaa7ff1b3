"""Compiled code gives other numbers than the same code run operator by operator.

## What happens

torch.compile fuses, reorders and pads operations. A wrong fusion or a wrong assumption about shapes and strides gives
NaN or finite wrong numbers, in any dtype; under activation checkpointing the recomputed graph may differ from the
first.

## How to tell

Eager execution, and backend `aot_eager`, are healthy; `inductor` is not. float32 may fail as well, which no matter of
range does.

## How to prove

Run the captured step without the compiler: finite. With `backend="aot_eager"`: finite, so the code generator is it.

## What to do

Do not compile, or exclude the one function (`torch.compiler.disable`); or install a later torch (upgrade-package).

## What does not help

Another dtype, a lower learning rate, clipping: the arithmetic itself is another.

## References

pytorch/pytorch#146129 and #173793, pytorch/torchtitan#1056, huggingface/lerobot#4178.
"""

from finitune.evidence import HINT, STRONG, Tells

remedies = ["upgrade-package"]
public_incidents = 7

tells: Tells = {
    "compiled": (STRONG, "the compiler rewrites the arithmetic"),
    "uncompiled-works": (STRONG, "eager mode computes the same without the compiler"),
    "compiled-code-fails": (STRONG, "only what the compiler made fails"),
    "float32-fails": (HINT, "the range of the dtype is not the matter"),
    "computes-float16": (-HINT, "an overflow of float16 is more frequent"),
    "recomputed": (STRONG, "the recomputed graph may differ from the first"),
}
