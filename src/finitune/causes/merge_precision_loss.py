"""An adapter is merged into weights that cannot hold it.

## What happens

Merging adds the adapter's product to the base. In 4 bits the sum is rounded to 16 levels; in float16 or bfloat16 what
is smaller than half an ulp of the weight is lost; a dtype that is fixed in the script narrows a wider base.

## How to tell

The adapter on its base is healthy, the merged model drifts, without any NaN.

## How to prove

Compare the logits of one batch before and after the merge: they agree to rounding, or the merge is the cause.

## What to do

Merge in the dtype of the original 16-bit base, or in float32 and cast once (keep-sixteen-bits).

## What does not help

More training, another learning rate: the adapter is intact. Merging twice.

## References

huggingface/autotrain-advanced#796 (the dtype of the merge is fixed).
"""

from finitune.evidence import HINT, STRONG, Tells

remedies = ["keep-sixteen-bits"]
public_incidents = 3
unseen = "what a merge rounds away"

tells: Tells = {
    "fp16-merge": (STRONG, "the sum is rounded to the dtype of the base"),
    "merged": (STRONG, "base and adapter are added into one weight"),
    "unmerged-works": (STRONG, "the adapter by itself is healthy"),
    "worse-after-load": (HINT, "it is worse after the merge only"),
    "tying-named": (-STRONG, "a broken tie of embedding and head is the likelier reason"),
    "quantised": (HINT, "a base of few bits loses small updates"),
}
