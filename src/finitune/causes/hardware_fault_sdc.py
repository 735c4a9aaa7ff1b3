"""A faulty accelerator, memory or board computes wrong numbers, loudly or silently.

## What happens

A bit flips in memory, a multiplier gives a wrong result, a link corrupts a transfer. Loud faults end the job (an
uncorrectable ECC error). Silent ones change a value: a single NaN, a spike in loss or gradient norm, or a drift that
nobody sees. In large runs hardware causes most interruptions, silent corruption a small share of them; on a single
card it is rare, and it is blamed far more often than it is guilty.

## How to tell

The bad step does not repeat: the same batch, weights and random state give a finite step. The same rank or node is
there each time. One node is common to all failed jobs and to none of the good ones. The driver's log counts ECC
errors or Xid events. Non-finite values stand in one place and not in a pattern of rows or channels.

## How to prove

Run the captured step again on the same card: a finite result means a transient fault or a race. Where a weight is bad,
take the updates before it again from weights that were kept. A fault that repeats on this card and not on another is
a defect of the card; one that repeats on every card is software. Communication races look the same: exclude them
first (no overlap of communication and computation).

## What to do

Discard the step, go on from finite weights, and note rank and node. After a second event on the same card, take it
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
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Weights
from finitune.finding import Evidence
from finitune.flipped_bits import flipped, in_words
from finitune.series import CLIMBED, Series, climb

experiments = [
    Experiment(arm="again", expect="finite", optional=True),  # not where it is a weight that has changed
    Experiment(arm="repair-weight={flipped}", expect="finite"),
    Experiment(arm="repair-weight={not_flipped}", expect="non-finite", placebo=True),
]
remedies = ["replace-hardware", "recompute-step", "restore-weights"]
public_incidents = 4
frame = "device"
EARLY = 2
"""Steps; what fails in the first ones fails for a reason that is there from the start."""

tells: Tells = {
    "ecc-error": (DECISIVE, "the device itself reports the fault"),
    "one-node": (STRONG, "only one machine or card fails"),
    "peer-copies": (-HINT, "copies between cards are another matter"),
    "computes-float16": (-HINT, "an overflow of float16 is more frequent"),
    "from-the-start": (-STRONG, "a hardware fault comes at any time"),
    "same-step": (-STRONG, "a hardware fault does not wait for one step"),
    "midway": (STRONG, "a hardware fault comes at any time"),
    "sudden": (STRONG, "a hardware fault comes at any time"),
    "illegal-access": (STRONG, "a failing card gives wrong addresses"),
    "cudnn-error": (HINT, "a failing card makes libraries fail"),
    "first-step-lost": (-STRONG, "a hardware fault comes at any time"),
}


def weigh(
    incident: Mapping[str, Any], repeats: bool | None = None, loss: Series | None = None,
    weights: Weights | None = None,
) -> Iterator[Evidence]:  # fmt: skip
    if incident.get("reduction"):
        yield evidence(
            "reduction", -DECISIVE, "every number is finite; what the ranks averaged is wrong, not what they computed"
        )
        return
    changed = incident.get("changed_in_memory")
    found = flipped(weights) if incident.get("step", 0) > 1 else None
    if found is not None:
        scan, before = found
        yield evidence("weights", DECISIVE, f"{in_words(scan)} in {scan.name}; with one bit the other way {before:.3g}")
    elif repeats is None:
        return
    elif changed is not None:
        yield evidence(
            "repetition", DECISIVE, f"the last updates, taken again, leave {changed} finite: something else wrote to it"
        )
        yield evidence("bad tensors", HINT, f"{changed} was bad first, and no other weight")
    elif repeats:
        yield evidence("repetition", -DECISIVE, "the same step is bad when run again")
        return
    else:
        yield evidence(
            "repetition", DECISIVE, "the same step, run again on the same weights, batch and random numbers, is finite"
        )
    bad, tensors = len(incident.get("bad", ())), incident.get("tensors") or 0
    if bad == 1 and tensors > 1 and changed is None:
        yield evidence("bad tensors", HINT, f"one tensor of {tensors} is bad: a single wrong value")
    times = climb(loss.values) if loss is not None else None
    if loss is not None and times is not None and times <= CLIMBED and (before := len(loss) - 1) > EARLY:
        yield evidence("first bad step", HINT, f"the loss of the {before} steps before it announces nothing")
