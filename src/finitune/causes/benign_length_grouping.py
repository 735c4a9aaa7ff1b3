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

from finitune.facts import Batching
from finitune.finding import Evidence, Finding, Remedy, Where

remedies = ["change-settings"]
public_incidents = 2

tells = {
    "sawtooth": (4.0, "rows of one length come together"),
    "length-grouping": (3.0, "rows of one length come together"),
    "gradient-nan loss-not-finite": (-4.0, "a sawtooth is finite"),
    "int8-weights": (-3.0, "a kernel explains more"),
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
        yield Evidence(text="rows are not grouped by length", bits=-8.0)
    elif any(symptom.startswith("nonfinite") for symptom in symptoms):
        yield Evidence(text="a sawtooth is finite", bits=-8.0)
    else:
        yield Evidence(text="rows are grouped by length, which makes the loss a sawtooth", bits=1.0)
