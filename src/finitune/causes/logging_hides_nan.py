"""The logged loss is not the loss: a filter puts something finite where it was NaN.

## What happens

HF Trainer replaces the loss of a step that was NaN by the mean of those it logged before, which is 0.0 when there are
none (`logging_nan_inf_filter`, true by default). The update is taken all the same. The curve is smooth or zero, and the
weights are NaN; a DeepSpeed engine prints 1.0 or 1.414 for a norm that is NaN.

## How to tell

`loss 0.0` together with `grad_norm nan`, 1.0 or 1.41421 in every line. A mean that equals no mean of the steps.

## How to prove

Train the same steps with the filter off: the log says NaN.

## What to do

`logging_nan_inf_filter: false` (change-settings), or train under `finitune run`, which records the raw loss and says so
on the line that hides it.

## What does not help

Logging every step: the filter acts there too, and prints 0.0. Believing a falling loss above a NaN gradient norm.

## References

huggingface/transformers#13758 and #13911 (the filter's own defects), ymcui/Chinese-LLaMA-Alpaca#383; measured in this
project: with logging_steps 4 the Trainer prints 3.62 where the finite losses average 3.92.
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Training
from finitune.finding import Evidence, Finding, Remedy, Where

remedies = ["equivalent-setting"]
public_incidents = 5
foresees = "log filter"

tells: Tells = {
    "log-filter": (DECISIVE, "a filter replaces the numbers that are not finite before they are printed"),
    "hidden-loss": (HINT, "a loss of NaN is printed as 0"),
    "zero-loss": (HINT, "a loss of NaN is printed as 0"),
    "sentinel-norm": (STRONG, "a norm that is not finite is printed as a number"),
    "zero-loss-finite-gradient": (STRONG, "a loss of NaN is printed as 0"),
}


def foresee(training: Training) -> Iterator[Finding]:
    if training.nan_filter is not True:
        return
    yield Finding(
        severity="info",  # it is the default, and harms nobody whose run is healthy
        message="logging_nan_inf_filter is true: the loss of a NaN step is printed as the mean of earlier ones, or 0.0",
        where=Where(file=training.source, key="logging_nan_inf_filter"),
        evidence={"nan_filter": True},
        remedy=Remedy(patch={"logging_nan_inf_filter": False}),
    )


def weigh(training: Training, symptoms: set[str]) -> Iterator[Evidence]:
    if training.nan_filter is False:
        yield evidence("log filter", -DECISIVE, "the filter is off, so the log says what was")
    elif symptoms:
        yield evidence("loss", -STRONG, "a filter hides a bad number, it makes none")
