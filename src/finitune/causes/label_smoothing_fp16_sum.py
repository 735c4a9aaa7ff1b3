"""Label smoothing sums the log-probabilities of a whole vocabulary in float16.

## What happens

The smoothed loss adds the log-probability of every token of the vocabulary. 32,000 terms of about -10 are -320,000, far
beyond 65504, so the sum is -inf and the loss inf or NaN. Under autocast the sum runs in float32; where the whole model
is cast (`fp16_full_eval`, a DeepSpeed engine in float16) it does not. Training may be healthy while evaluation fails.

## How to tell

`label_smoothing_factor` above 0, and a whole model in float16. `eval_loss` is NaN while accuracy or BLEU is good.

## How to prove

Evaluate the same batch with the smoothing switched off, or in float32: the loss is finite.

## What to do

Evaluate in bfloat16 or float32 (change-settings), or install a release of transformers from 4.5 on, which sums in
float32.

## What does not help

A lower learning rate: the weights are intact. A smaller factor: the sum is taken before it is multiplied.

## References

huggingface/transformers#10674 (t5-small, NaN in evaluation only) and its fix #10815.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.specifiers import SpecifierSet

from finitune.chapter import Needs, needs
from finitune.evidence import DECISIVE, FLOAT16_ONLY, HINT, STRONG, Tells, evidence
from finitune.facts import Model, Parallel, Precision, Training
from finitune.finding import Evidence, Finding, Origin, Remedy, Where

NARROW_SUM = SpecifierSet("<4.5")
"""Releases of transformers that sum in the dtype of the logits."""

remedies = ["equivalent-setting"]
public_incidents = 1
foresees = "smoothing"

tells: Tells = {
    **FLOAT16_ONLY,
    "smoothing": (STRONG, "label smoothing sums over the whole vocabulary"),
    "half-eval": (STRONG, "evaluation in float16 sums without autocast"),
    "nonfinite-evaluation": (HINT, "the smoothed sum has no autocast in evaluation"),
    "computes-float16": (HINT, "a sum over the vocabulary leaves the range of float16"),
}


def foresee(
    precision: Precision,
    training: Training,
    parallel: Parallel | None = None,
    versions: Mapping[str, str] | None = None,
    model: Model | None = None,
) -> Iterator[Finding | Needs]:
    version = (versions or {}).get("transformers")
    whole = precision.full_eval == "float16" or (
        precision.compute == "float16" and parallel is not None and parallel.kind == "deepspeed"
    )
    if not training.label_smoothing:
        return
    if not whole:
        yield from needs(parallel=parallel) if precision.compute == "float16" else ()
        return
    if version is not None and not NARROW_SUM.contains(version, prereleases=True):
        return
    size = model.vocabulary if model else None
    terms = f"{size} terms" if size else "one term per token of the vocabulary"
    yield Finding(
        severity="warning",  # releases from 4.5 on are not affected, and the release is often not known
        message=f"label smoothing {training.label_smoothing:g} sums {terms} in float16, which ends at 65504: the "
        "evaluation loss is NaN before transformers 4.5",
        where=Where(file=training.source, key="label_smoothing_factor"),
        evidence={"label_smoothing": training.label_smoothing, "vocabulary": size, "transformers": version},
        remedy=Remedy(patch={"fp16_full_eval": False}),
    )


def weigh(training: Training, origin: Origin) -> Iterator[Evidence]:
    summed = origin.op in ("aten.sum", "aten.mean") and origin.dtype == "float16"
    if training.label_smoothing is None and summed:
        return
    if not training.label_smoothing or not summed:
        yield evidence("origin", -DECISIVE, "no smoothed loss is summed in float16")
    else:
        yield evidence("origin", DECISIVE, f"{origin.op} over the vocabulary leaves the range of float16")
