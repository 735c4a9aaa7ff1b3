"""Pack rows into full sequences, so that nothing is padded.

## What it changes

`packing: true` in TRL, `sample_packing` in Axolotl: rows are joined up to the maximum length, and no position holds the
padding token. A batch then holds more tokens, so that a step does more; the learning rate may want a look.

## When it is safe

When rows do not see each other: with position ids that begin anew and an attention that respects them (TRL's default
with flash attention), or where short rows that follow each other do no harm.

## References

unslothai/unsloth#911 (grad_norm nan only without packing).
"""

from __future__ import annotations

from finitune.facts import Batching
from finitune.finding import Finding, Origin, Remedy

safety = "advice"


def propose(
    finding: Finding | None = None, origin: Origin | None = None, batching: Batching | None = None
) -> Remedy | None:
    """Only where padding is what fails."""
    pads = bool(origin and origin.padding) or bool(finding and finding.evidence.get("padding"))
    if not pads or (batching is not None and batching.packing):
        return None
    return Remedy(patch={"packing": True})
