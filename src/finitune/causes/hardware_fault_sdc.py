"""A faulty accelerator, memory or board computes wrong numbers, loudly or silently.

## What happens

A bit flips in memory, a multiplier gives a wrong result, a link corrupts a transfer. Loud faults end the job (an
uncorrectable ECC error). Silent ones change a value: a single NaN, a spike in loss or gradient norm, or a drift that
nobody sees. In large runs hardware causes most interruptions, silent corruption a small share of them; on a single
card it is rare, and it is blamed far more often than it is guilty.

## How to tell

The bad step does not repeat: the same batch, weights and random state give a sound step. The same rank or node is
there each time. One node is common to all failed jobs and to none of the good ones. The driver's log counts ECC
errors or Xid events. Non-finite values stand in one place and not in a pattern of rows or channels.

## How to prove

Run the captured step again on the same card: a sound result means a transient fault or a race. A fault that repeats
on this card and not on another is a defect of the card; one that repeats on every card is software. Communication
races look the same: exclude them first (no overlap of communication and computation).

## What to do

Discard the step, go on from sound weights, and note rank and node. After a second event on the same card, take it
out and run the vendor's diagnostics (replace-hardware).

## What does not help

Changing the learning rate, the data or the precision: the fault is in none of them. Swapping the card once and calling
the absence of NaN a proof: a rare event stays away by itself for a while. Ignoring it: corrupted weights are saved like
others.

## References

hiyouga/LLaMA-Factory#9170 (uncorrectable ECC error), jade-hpc-gpu/jade-hpc-gpu.github.io#194 (confirmed by the
operators), ServiceNow/Fast-LLM#77 (one node common to all failed jobs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from finitune.chapter import Experiment
from finitune.finding import Evidence

experiments = [Experiment(arm="again", expect="finite")]
remedies = ["replace-hardware"]
public_incidents = 4

tells = {
    "ecc-error": (9.0, "the device reports it"),
    "one-node": (3.5, "only one board fails"),
    "peer-copies": (-1.0, "copies are another matter"),
    "computes-float16": (-1.0, "float16 explains more"),
    "from-the-start": (-3.0, "a fault strikes at any time"),
    "same-step": (-4.0, "a fault does not wait for a step"),
    "midway": (2.0, "it strikes at any time"),
    "sudden": (4.0, "it strikes at any time"),
    "illegal-access": (2.0, "a card that fails"),
    "cudnn-error": (1.0, "a card that fails"),
    "first-step-lost": (-2.0, "a fault strikes at any time"),
}


def weigh(repeats: bool, incident: Mapping[str, Any]) -> Iterator[Evidence]:
    if incident.get("reduction"):
        yield Evidence(
            text="every number is finite; what the ranks averaged is wrong, not what they computed", bits=-6.0
        )
        return
    if repeats:
        yield Evidence(text="the same step is bad when run again", bits=-10.0)
        return
    yield Evidence(text="the same step, run again on the same weights, batch and random numbers, is sound", bits=8.0)
    bad, tensors = len(incident.get("bad", ())), incident.get("tensors") or 0
    if bad == 1 and tensors > 1:
        yield Evidence(text=f"one tensor of {tensors} is bad: a single wrong value", bits=1.0)
