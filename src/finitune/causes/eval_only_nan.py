"""Only evaluation is NaN, while training is healthy.

## What happens

Evaluation differs from training in its dtype (no autocast), its padding (the left side, larger batches), its data
(rows without target) and its average: one NaN batch makes the mean NaN. This is the name of what is not yet decided
among these.

## How to tell

The training loss is normal, `eval_loss` is nan from the first evaluation on.

## How to prove

Evaluate with batch size 1 and look which rows are NaN; count their supervised tokens; then the same in float32.

## What to do

Run one evaluation batch before training. Drop rows without target (drop-unsupervised-rows), evaluate in the dtype of
training (change-settings).

## What does not help

A lower learning rate or clipping: nothing is trained in evaluation.

## References

McGill-NLP/llm2vec#174, THUDM/GLM-4#724.
"""

from finitune.evidence import HINT, STRONG, Tells

remedies = ["drop-unsupervised-rows"]
public_incidents = 2

tells: Tells = {
    "nonfinite-evaluation": (STRONG, "training is finite, and only evaluation is NaN"),
    "computes-float16": (-HINT, "an overflow of float16 would show in training too"),
    "smoothing": (-STRONG, "the smoothed sum of evaluation is another matter"),
}
