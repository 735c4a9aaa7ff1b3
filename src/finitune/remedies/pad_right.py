"""Pad on the right for training, or train without padding.

## What it changes

The side on which short sequences are filled up. Under a causal mask a real token then never sees padding, and every
padded position sees at least the real tokens before it: no row of the mask is empty.

## When it is safe

For training with labels that ignore padding. Generation in batches needs left padding: set it back for evaluation
that generates. Packing, or batches of one length, need no padding at all.

## References

huggingface/transformers#27179, huggingface/transformers#29739, ludwig-ai/ludwig#3950.
"""

from __future__ import annotations

from finitune.facts import Batching, Training, Vocabulary
from finitune.finding import Remedy

safety = "safe"
arm = "pad-other-side"


def propose(
    batching: Batching | None = None, training: Training | None = None, vocabulary: Vocabulary | None = None
) -> Remedy | None:
    if training is not None and training.framework == "ludwig":
        return None  # its code pads on the left, whatever the files say
    if batching is not None and batching.padding_side == "right":
        return None
    if batching is not None and batching.padding_side is None and batching.padded_rows:
        return None  # rows that are masked as a whole stay empty on either side
    if batching is None and vocabulary is None and training is None:  # nobody saw the settings of the run
        return Remedy(text="fill short rows up on the right, so that every row of the mask lets something be seen")
    return Remedy(patch={"padding_side": "right"})
