"""A single record spoils the step: an empty target, a NaN in cached features, a row of zeros.

## What happens

Losses that align or normalise divide by what a record offers: CTC is infinite for a target longer than its input, a
norm of zeros is zero, a cached latent may hold NaN. One such record makes the gradient of its batch non-finite, and
without a guard the weights.

## How to tell

The same step fails each time while the order of the data is fixed; with another order another step. The failure moves
with the record, in any precision.

## How to prove

Run the captured batch row by row: one row is bad by itself. Leave it out: the step is finite.

## What to do

Filter such records before training (drop-unsupervised-rows for targets), scan caches for NaN, skip non-finite steps.

## What does not help

Clipping: a NaN norm cannot be scaled. A lower learning rate: the record is as bad at any rate.

## References

espnet/espnet#2771 (empty targets), huggingface/diffusers#7563, alibaba/Pai-Megatron-Patch#366,
mravanelli/pytorch-kaldi#154.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from finitune.chapter import Experiment
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.finding import Evidence, Origin

OUTLYING = 1000.0
"""Times the median sample: no standardised feature is so large, and the square of few is."""
OF_ZERO = tuple(f"aten.{name}" for name in (
    "div", "mean", "log", "log2", "log10", "sqrt", "rsqrt", "reciprocal", "pow", "norm", "linalg_vector_norm", "std",
    "var",
))  # fmt: skip
"""Operators that are not finite, or have no finite derivative, at 0, or for nothing that is above it."""
EXPONENTIALS = ("aten.exp", "aten.expm1", "aten.exp2")
experiments = [
    Experiment(arm="leave-rows-out={bad_rows}", expect="finite"),
    Experiment(arm="leave-rows-out={other_samples}", expect="non-finite", placebo=True),
]
remedies = ["drop-samples"]
public_incidents = 6

tells: Tells = {
    "empty-target": (DECISIVE, "a sample without a target divides by zero"),
    "bad-data": (STRONG, "the report finds the fault in the data"),
    "target-out-of-range": (DECISIVE, "a label of this batch is none of the classes"),
    "same-step": (STRONG, "the same sample comes at the same step"),
    "computes-float16": (-HINT, "an overflow of float16 is more frequent"),
    "data-dependent": (STRONG, "other data do not show it"),
    "from-the-start": (-HINT, "a single bad sample is seldom among the first"),
    "no-target-left": (-HINT, "missing labels are the matter of all-labels-ignored"),
    "speech": (HINT, "targets of speech have every length, and some are empty"),
    "midway": (HINT, "one bad sample among many"),
    "sudden": (HINT, "one bad sample among many"),
    "nan-passes": (STRONG, "one bad sample among many"),
}

CTC = "aten._ctc_loss"


def weigh(incident: Mapping[str, Any], origin: Origin | None = None) -> Iterator[Evidence]:
    """What the batch holds before anything is computed of it cannot come from the model."""
    held = [fact for fact in incident.get("batch") or () if "values" in fact]
    if incident.get("symptom") == "crash" and held:
        yield evidence("origin", DECISIVE, f"{held[0]['name']} holds {held[0]['values']} where the program died")
        return
    if origin is not None and origin.phase == "input":
        if incident.get("factor") and origin.op.startswith("aten.") and origin.op not in EXPONENTIALS:
            yield evidence("origin", -STRONG, f"{origin.op} of the loop gives a factor of the loss, which is no sample")
            return
        yield _of_input(origin, incident.get("samples") or ())
        return
    few = _few_samples(origin, incident.get("samples") or ()) if origin and origin.is_empty_mean else None
    if few is not None:
        yield evidence("origin", DECISIVE, f"{few}: 0/0, and what it divides by is made of the batch alone")
    if origin is not None and origin.op == CTC and "inf" in (origin.values or "").replace("-inf", ""):
        yield evidence("origin", DECISIVE, "a target is longer than what its input can hold, so no alignment exists")
        yield evidence("loss", STRONG, "the loss of CTC is infinite for such a sample")
        return
    peaks = [float(peak) for peak in incident.get("sample_peaks") or ()]
    finite = [peak for peak in peaks if math.isfinite(peak)]
    typical = statistics.median(finite) if finite else 0.0
    # What is not finite and was there before anything is computed is an origin of the phase input; the rest of it the
    # loop has computed, as the targets of a critic.
    odd = [row for row, peak in enumerate(peaks) if OUTLYING * typical < peak < math.inf]
    if odd and typical > 0 and _lies_in(origin, odd):
        where = f"sample {odd[0]} of {len(peaks)} reaches {peaks[odd[0]]:.3g}, the median of the batch {typical:.3g}"
        yield evidence("origin", DECISIVE, where)
    silent = [row for row, peak in enumerate(peaks) if peak == 0]
    one_number = incident.get("sample_numbers") == 1 and origin is not None and origin.phase == "backward"
    if one_number or (origin is not None and origin.phase == "optimizer"):
        silent = []  # the forward bears it, and a 0 is one number as another; an update is made of all samples
    if silent and typical > 0 and origin is not None and origin.op in OF_ZERO and _lies_in(origin, silent):
        yield evidence("origin", DECISIVE, f"sample {silent[0]} of {len(peaks)} is 0 everywhere, the others are not")


def _lies_in(origin: Origin | None, rows: list[int]) -> bool:
    """In no other sample, as far as is known."""
    return set((origin and origin.rows) or rows) <= set(rows)


def _of_input(origin: Origin, samples: Sequence[int]) -> Evidence:
    """`samples`: how many each micro-step has, where that is known."""
    if origin.op.startswith("aten."):
        # The loop has computed it of the batch: a sample is to blame where it is bad in some samples alone.
        if origin.op in EXPONENTIALS and 0 < (origin.peak or 0.0) < OUTLYING:
            # The other samples stay just below the limit, which is 89 in float32: none of them is far from the rest.
            text = f"{origin.op} overflows at {origin.peak:.4g}, to which its argument may have grown in every sample"
            return evidence("origin", -STRONG, text)
        if (few := _few_samples(origin, samples)) is not None:
            return evidence("origin", DECISIVE, few)
        return evidence("origin", -STRONG, f"{origin.op} gives {origin.values} of a batch that is finite")
    if origin.shape == []:
        return evidence("origin", -STRONG, f"one number is {origin.values}, which is no sample of the batch")
    if _everywhere(origin) and (_is_variable(origin) or _whole(origin)):
        return evidence(
            "origin", HINT, f"every sample of the batch has {origin.values}, which the loop may have computed"
        )
    what, _, of = (origin.tensor or "").partition(" of ")
    if what in ("weight", "pos_weight"):
        return evidence("origin", -STRONG, f"the {what} of the loss is not finite, which is no sample of the batch")
    holds = "what the loss is computed of holds" if of else "the batch itself holds"
    return evidence("origin", DECISIVE, f"{holds} {origin.values or 'values that are not finite'}")


def _few_samples(origin: Origin, samples: Sequence[int]) -> str | None:
    """In how many of the samples it is bad, in words; None where that is in all, or its rows are no samples."""
    if origin.is_empty_mean and origin.shape == [] and len(samples) > 1:
        return f"nothing counts in one of {len(samples)} micro-steps"
    bad, rows = len(origin.rows or ()), (origin.shape or (0,))[0]
    is_few = 0 < bad < rows and (not samples or rows in (*samples, sum(samples)))
    return f"{origin.op} gives {origin.values} in {bad} of {rows} samples" if is_few else None


def _everywhere(origin: Origin) -> bool:
    return origin.rows == list(range((origin.shape or (0,))[0]))


def _is_variable(origin: Origin) -> bool:
    """The statement that wrote it is known."""
    return origin.line is not None and not (origin.tensor or "").startswith("input ")


def _whole(origin: Origin) -> bool:
    """No element is finite, as where a loop divides by the spread of one sample."""
    return (origin.values or "").partition(" ")[0] == str(math.prod(origin.shape or (0,)))
