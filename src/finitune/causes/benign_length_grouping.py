"""The loss rises and falls with the length of the sequences, because they are grouped by it.

## What happens

With `group_by_length` batches are made of rows of about the same length, the longest first. Short rows have another
loss than long ones, so the logged loss is a sawtooth, and the gradient norm with it. Nothing is wrong.

## How to tell

The period is that of the groups, the same in every epoch, and the evaluation loss is smooth. It is there from the first
epoch on and does not grow.

## How to prove

Switch the grouping off for a few hundred steps: the sawtooth is gone.

## What to do

Nothing, or switch it off where a smooth curve matters more than the padding it saves (change-settings).

## What does not help

A lower learning rate, clipping, skipping batches: they answer a question that nobody asked.

## References

tloen/alpaca-lora#335 (settings differ, curves differ), incident taxonomy (two public incidents).
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Batching
from finitune.finding import Evidence, Finding, Remedy, Where

remedies = ["change-settings"]
public_incidents = 2
foresees = "length grouping"

tells: Tells = {
    "sawtooth": (STRONG, "samples of one length come together, and lengths go round"),
    "length-grouping": (STRONG, "samples of one length come together"),
    "nonfinite-gradient": (-STRONG, "grouping by length leaves every number finite"),
    "nonfinite-loss": (-STRONG, "grouping by length leaves every number finite"),
    "int8-weights": (-STRONG, "an 8-bit kernel is the likelier reason"),
}


def foresee(batching: Batching) -> Iterator[Finding]:
    if not batching.group_by_length:
        return
    yield Finding(
        severity="info",  # nothing is wrong; the curve will look as if it were
        message="rows are grouped by length, so the logged loss will be a sawtooth, which is normal",
        where=Where(file=batching.source, key="group_by_length"),
        evidence={"group_by_length": True},
        remedy=Remedy(patch={"group_by_length": False}),
    )


def weigh(batching: Batching, symptoms: set[str]) -> Iterator[Evidence]:
    if batching.group_by_length is None:
        return
    if not batching.group_by_length:
        yield evidence("length grouping", -DECISIVE, "rows are not grouped by length")
    elif any(symptom.startswith("nonfinite") for symptom in symptoms):
        yield evidence("loss", -DECISIVE, "a sawtooth is finite")
    else:
        yield evidence("length grouping", HINT, "rows are grouped by length, which makes the loss a sawtooth")
