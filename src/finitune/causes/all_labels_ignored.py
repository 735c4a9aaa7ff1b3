"""A micro-batch in which no token is supervised: the mean loss is 0 divided by 0.

## What happens

The loss is the sum over supervised tokens divided by their number. When every label of a micro-batch is -100 both
are 0 and the quotient is NaN. Some kernels and trainers guard against it and answer 0, others do not, and a version
bump or a silent change of kernel can swap one for the other. The usual reasons: the prompt fills max_length so that
truncation removes the whole answer; the answer is empty; a response marker is never found; padding and end token are
the same id and all that follows the first one is masked.

## How to tell

Count supervised tokens per row after truncation; the first position never counts, because targets are shifted. In
the log: `loss 0.0` with `grad_norm 0.0` (zero, not nan), a NaN evaluation loss of an otherwise sound model, or
warnings of a tokenization mismatch whose rows are ignored. The gradients of such a step are exactly zero.

## How to prove

Run the captured step again without the rows that supervise nothing: it becomes sound. Removing as many other rows
must not help. Another batch is sound.

## What to do

Drop the rows (drop-unsupervised-rows), raise max_length, truncate the prompt instead of the answer, or mend the
template. Larger micro-batches make a wholly empty one rarer, not impossible.

## What does not help

A lower learning rate, clipping, another dtype: the division is by zero in every one of them. Lowering max_length
makes more rows empty. Filling labels with the end token trains on noise.

## References

lm-sys/FastChat#3266, lm-sys/FastChat#2494, bytedance/UniVR#13, NVIDIA-NeMo/Automodel#3796 (three of four loss
kernels unguarded), NVIDIA-NeMo/Automodel#1985, Lightning-AI/litgpt#150, ymcui/Chinese-LLaMA-Alpaca-3#29.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from finitune.chapter import Experiment
from finitune.facts import Labels, Optimizer
from finitune.finding import Evidence, Finding, Origin, Where

LIKELY_EMPTY_BATCHES = 0.5
"""So many wholly empty micro-batches expected in one epoch, and the run is called broken: more likely than not."""

_MEANS = ("aten.nll_loss_forward", "aten.nll_loss2d_forward", "aten.div", "aten.mean", "aten.cross_entropy_loss")

SHOWN = 100
"""So many rows are listed; the evidence has their number."""

experiments = [
    Experiment(arm="label-every-token", expect="finite"),
    Experiment(arm="shuffle-tokens", expect="non-finite", placebo=True),
]
remedies = ["drop-unsupervised-rows"]
public_incidents = 17

tells = {
    "tokenization-mismatch no-supervised-token": (7.0, "the program says that it ignores the labels"),
    "labels-ignored": (2.5, "what hides labels can hide all of a row"),
    "evaluation-only eval-loss-nan": (2.5, "one batch without targets makes the mean nan"),
    "rows-without-gradient": (5.0, "such rows leave the gradient at 0, and trainers print a mean for their loss"),
    "zero-loss-zero-gradient": (4.0, "a guarded mean over no target is 0"),
    "pads-with-eos": (0.7, "labels of padding are ignored, and eos with them"),
    "template": (0.5, "a response marker that is not found hides all"),
    "loss-not-finite": (2.0, "a mean over no target is 0/0"),
    "hidden-loss": (1.0, "a mean over no target, printed as 0"),
    "sentinel-norm": (1.0, "the update was taken with a norm that was not finite"),
    "zero-loss-finite-gradient": (6.0, "a part of the batch has no target"),
    "gradient-first": (-5.0, "it would show in the loss first"),
    "midway": (1.0, "one row without a target"),
    "sudden": (2.0, "one row without a target"),
    "climbed": (-5.0, "it comes without a climb"),
    "diverged": (-4.0, "it ends in a number that is not finite"),
    "scale-fell": (-5.0, "no matter of the loss scale"),
    "sound-loss": (-2.0, "it would show in the loss"),
    "empty-target": (3.5, "a row without a target"),
    "reinforcement": (-4.0, "there a loss may be 0 in earnest"),
    "no-target-left": (4.5, "nothing is left to learn from"),
    "kernel-level serving": (-2.0, "nothing is trained"),
    "nan-passes": (3.0, "such a row leaves the weights alone"),
    "second-step": (-2.0, "rows are as they are"),
    "loss-jumped": (-4.0, "updates ruined the model"),
    "gradient-lost-too": (-2.0, "it leaves the gradient at 0"),
    "from-the-start": (1.0, "rows are as they are"),
    "no-sample-left": (5.0, "rows without a target were dropped"),
}


def foresee(labels: Labels, optimizer: Optimizer | None = None) -> Iterator[Finding]:
    empty = np.flatnonzero(labels.supervised == 0)
    if not len(empty):
        return
    total = len(labels.supervised)
    batch = optimizer.batch if optimizer and optimizer.batch and optimizer.batch > 0 else None
    expected = expected_empty_batches(total, len(empty), batch) if batch else None
    certain = len(empty) == total or (expected is not None and expected >= LIKELY_EMPTY_BATCHES)
    lines = labels.row_lines[empty] if labels.row_lines is not None else None
    places = ", ".join(str(n) for n in (empty if lines is None else lines)[:5])
    more = ", ..." if len(empty) > 5 else ""
    name = "rows" if lines is None else "lines"
    yield Finding(
        severity="error" if certain else "warning",
        message=f"{len(empty)} of {total} rows have no supervised token ({name} {places}{more}); "
        + _outlook(batch, expected),
        where=Where(file=labels.source, rows=empty[:SHOWN].tolist()),
        evidence={
            "rows": total,
            "unsupervised_rows": len(empty),
            **({} if lines is None else {"lines": lines[:SHOWN].tolist()}),
            **({} if batch is None else {"batch": batch, "expected_empty_batches": expected}),
        },
    )


def weigh(labels: Labels, origin: Origin | None = None) -> Iterator[Evidence]:
    supervised = int(labels.supervised.sum())
    if labels.row_lines is not None:  # rows of a file; of those that are empty `foresee` speaks
        if (labels.supervised > 0).all():
            yield Evidence(text=f"all {len(labels.supervised)} rows of the data have supervised tokens", bits=-2.0)
        return
    if supervised:
        yield Evidence(text=f"{supervised} tokens of the batch are supervised", bits=-8.0)
        return
    yield Evidence(text=f"none of the {len(labels.supervised)} rows of the batch has a supervised token", bits=8.0)
    if origin is not None and origin.op in _MEANS and origin.values and "nan" in origin.values:
        yield Evidence(text=f"{origin.op} divides by the number of targets, which is zero", bits=2.0)
    elif origin is not None:
        yield Evidence(text=f"but the first bad value is elsewhere, in {origin.op}", bits=-5.0)


def expected_empty_batches(rows: int, empty: int, batch: int) -> float:
    """How many of the rows // batch shuffled micro-batches hold empty rows only: the hypergeometric mean."""
    if empty < batch:
        return 0.0
    log_chance = sum(math.log(empty - i) - math.log(rows - i) for i in range(batch))
    return max(1, rows // batch) * math.exp(log_chance)


def _outlook(batch: int | None, expected: float | None) -> str:
    if batch is None or expected is None:
        return "a micro-batch of such rows alone has loss 0/0"
    if batch == 1:
        return "with one row per micro-batch each of them has loss 0/0"
    return f"with {batch} rows per micro-batch about {expected:.2g} wholly empty ones (loss 0/0) are expected per epoch"
