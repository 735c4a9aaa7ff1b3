"""A micro-batch in which no token is supervised: the mean loss is 0 divided by 0.

## What happens

The loss is the sum over supervised tokens divided by their number. When every label of a micro-batch is -100 both
are 0 and the quotient is NaN; some kernels and trainers guard against it and answer 0. The usual reasons: the prompt
fills max_length so that truncation removes the whole answer; the answer is empty; a response marker is never found;
padding and end token are the same id and all that follows the first one is masked.

## How to tell

Count supervised tokens per row after truncation; the first position never counts, because targets are shifted. In
the log: `loss 0.0` with `grad_norm 0.0` (zero, not nan), a NaN evaluation loss of an otherwise healthy model, or
warnings of a tokenization mismatch. The gradients of such a step are exactly zero.

## How to prove

Run the captured step again without the rows that supervise nothing: it becomes finite; without as many others: not.

## What to do

Drop the rows (drop-unsupervised-rows), raise max_length, truncate the prompt, or correct the template.

## What does not help

A lower learning rate, clipping, another dtype. Lowering max_length makes more rows empty.

## References

lm-sys/FastChat#3266, #2494, bytedance/UniVR#13, NVIDIA-NeMo/Automodel#3796, #1985, Lightning-AI/litgpt#150,
ymcui/Chinese-LLaMA-Alpaca-3#29.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from finitune.chapter import Experiment
from finitune.evidence import DECISIVE, HINT, STRONG, TRAINING_ONLY, Tells, evidence
from finitune.facts import Labels, Optimizer
from finitune.finding import Evidence, Finding, Origin, Remedy, Where

LIKELY_EMPTY_BATCHES = 0.5  # of which so many are expected in one epoch, the run is called broken: more likely than not
_MEANS = ("aten.nll_loss_forward", "aten.nll_loss2d_forward", "aten.div", "aten.mean", "aten.cross_entropy_loss")
_COUNT = re.compile(r"/(?!.*weight).*(sum|count|num)", re.IGNORECASE)
_OF_TOKENS = re.compile(r"(log_?p|nll|ce\W).*/.*(keep|mask|label|answer|target|token|completion).*(sum|count|num)")
_LESS_ONE = re.compile(r"/[^/]*[\w)\]]\s*-\s*1\b")  # of a variance: degrees of freedom
HALF, FEW, SHOWN = 0.5, 0.05, 100  # of a row most is gone; more than one row in twenty is no exception; rows listed

experiments = [
    Experiment(arm="label-every-token", expect="finite"),
    Experiment(arm="shuffle-tokens", expect="non-finite", placebo=True),
]
remedies = ["drop-unsupervised-rows"]
public_incidents = 17
foresees = "labels"

tells: Tells = {
    **TRAINING_ONLY,
    "tokenization-mismatch": (DECISIVE, "the program says that it ignores the labels"),
    "no-supervised-token": (DECISIVE, "the program says that it ignores the labels"),
    "labels-ignored": (STRONG, "what hides some labels can hide all of a sample"),
    "nonfinite-evaluation": (STRONG, "one batch without targets makes the mean of the evaluation NaN"),
    "rows-without-gradient": (
        DECISIVE,
        "samples without targets have a gradient of 0, and trainers print a mean for their loss",
    ),
    "zero-loss-zero-gradient": (STRONG, "a guarded mean over no target is 0"),
    "pads-with-eos": (HINT, "labels of padding are ignored, and with them those of eos"),
    "template": (HINT, "a response marker that is not found hides every label"),
    "nonfinite-loss": (HINT, "a mean over no target is 0/0"),
    "hidden-loss": (HINT, "a mean over no target is NaN, which is printed as 0"),
    "sentinel-norm": (HINT, "an update was taken although the gradient norm was not finite"),
    "infinite-loss": (-DECISIVE, "a mean over no target is NaN, not infinite"),
    "zero-loss-finite-gradient": (DECISIVE, "a part of the batch has no target"),
    "gradient-first": (-DECISIVE, "a mean over no target shows in the loss first"),
    "midway": (HINT, "one sample among many may have no target"),
    "sudden": (STRONG, "one sample among many may have no target"),
    "climbed": (-DECISIVE, "a missing target comes without a climb"),
    "divergence": (-STRONG, "a mean over no target is not finite"),
    "loss-scale-collapse": (-DECISIVE, "it does not depend on the loss scale"),
    "finite-loss": (-STRONG, "a mean over no target shows in the loss"),
    "empty-target": (STRONG, "an empty target leaves a sample without labels"),
    "reinforcement": (-STRONG, "in reinforcement learning a loss of 0 is ordinary"),
    "no-target-left": (STRONG, "nothing is left to learn from"),
    "nan-stays": (-STRONG, "a sample without targets leaves the weights as they are, and the next loss is finite"),
    "nan-passes": (STRONG, "a sample without targets leaves the weights as they are"),
    "second-step": (-STRONG, "updates do not change which labels are ignored"),
    "loss-jumped": (-STRONG, "updates had ruined the model"),
    "gradient-lost-too": (-STRONG, "the gradient of an ignored label is exactly 0, also where the mean is 0/0"),
    "from-the-start": (HINT, "no update is needed for it"),
    "no-sample-left": (DECISIVE, "every sample was dropped for having no target"),
}


def foresee(labels: Labels, optimizer: Optimizer | None = None) -> Iterator[Finding]:
    yield from _cut(labels)
    empty = np.flatnonzero(labels.supervised == 0)
    if not len(empty):
        return
    total, name = len(labels.supervised), "rows" if labels.row_lines is None else "lines"
    batch = optimizer.batch if optimizer and optimizer.batch and optimizer.batch > 0 else None
    expected = expected_empty_batches(total, len(empty), batch) if batch else None
    certain = len(empty) == total or (expected is not None and expected >= LIKELY_EMPTY_BATCHES)
    lines = labels.row_lines[empty] if labels.row_lines is not None else None
    places = ", ".join(str(n) for n in (empty if lines is None else lines)[:5]) + (", ..." if len(empty) > 5 else "")
    yield Finding(
        severity="error" if certain else "warning",
        message=f"{len(empty)} of {total} rows have no supervised token ({name} {places}); "
        + _outlook(batch, expected),
        where=Where(file=labels.source, rows=empty[:SHOWN].tolist()),
        evidence={"rows": total, "unsupervised_rows": len(empty)}
        | ({} if lines is None else {"lines": lines[:SHOWN].tolist()})
        | ({} if batch is None else {"batch": batch, "expected_empty_batches": expected}),
    )


def _cut(labels: Labels) -> Iterator[Finding]:
    """Rows that keep less than half of their targets, where that is not the exception."""
    if labels.whole is None or labels.lengths is None:
        return
    cut = np.flatnonzero((labels.supervised < HALF * labels.whole) & (labels.supervised > 0))
    if len(cut) <= FEW * len(labels.supervised):
        return
    kept, whole, length = (int(np.median(one[cut])) for one in (labels.supervised, labels.whole, labels.lengths))
    yield Finding(
        severity="warning",  # what is left trains well, and the model learns to break off
        message=f"{len(cut)} of {len(labels.supervised)} rows lose more than half of their answer to truncation: "
        f"{whole} target tokens become {kept} (median)",
        where=Where(file=labels.source, rows=cut[:SHOWN].tolist()),
        evidence={"rows": len(labels.supervised), "cut_rows": len(cut), "targets": whole, "targets_kept": kept},
        remedy=Remedy(name="change-settings", text=f"raise max_length (these rows have {length} tokens)"),
    )


def _mean_of_nothing(origin: Origin) -> Iterator[Evidence]:
    line, of_all = origin.line or "", origin.shape == [] and not origin.peak
    if origin.is_loss_of_nothing:
        yield evidence("origin", DECISIVE, f"nan of no number but 0: {origin.op} is a mean over no target")
    zero_over_zero = origin.op == "aten.div" and origin.divisor and "nan" in (origin.values or "")
    counted = zero_over_zero and origin.phase not in ("optimizer", "backward") and not _LESS_ONE.search(line)
    if counted and (of_all or _OF_TOKENS.search(line)):
        yield evidence("origin", STRONG, f"0 is divided by 0 ({origin.divisor})")
        if _COUNT.search(line) or (origin.is_empty_mean and _OF_TOKENS.search(line)):
            yield evidence("statement", STRONG, "what it is divided by is a number of targets")


def weigh(labels: Labels | None = None, origin: Origin | None = None) -> Iterator[Evidence]:
    if labels is None or (origin is not None and origin.is_empty_mean and _OF_TOKENS.search(origin.line or "")):
        yield from _mean_of_nothing(origin) if origin is not None else ()
        return
    supervised = int(labels.supervised.sum())
    if labels.row_lines is not None:  # rows of a file; of those that are empty `foresee` speaks
        if (labels.supervised > 0).all():
            yield evidence("labels", -STRONG, f"all {len(labels.supervised)} rows of the data have supervised tokens")
        return
    if supervised:
        yield evidence("labels", -DECISIVE, f"{supervised} tokens of the batch are supervised")
        return
    yield evidence("labels", DECISIVE, "no row of the batch has a supervised token")
    if origin is not None and origin.op in _MEANS and origin.values and "nan" in origin.values:
        yield evidence("origin", STRONG, f"{origin.op} divides by the number of targets, which is zero")
    elif origin is not None:
        yield evidence("origin", -DECISIVE, f"but the first bad value is elsewhere, in {origin.op}")


def expected_empty_batches(rows: int, empty: int, batch: int) -> float:
    """How many of the rows // batch shuffled micro-batches hold empty rows only: the hypergeometric mean."""
    return max(1, rows // batch) * (math.comb(empty, batch) / max(1, math.comb(rows, batch)))


def _outlook(batch: int | None, expected: float | None) -> str:
    if batch is None or expected is None:
        return "a micro-batch of such rows alone has loss 0/0"
    if batch == 1:
        return "with one row per micro-batch each of them has loss 0/0"
    return f"with {batch} rows per micro-batch about {expected:.2g} wholly empty ones (loss 0/0) are expected per epoch"
