"""Give one setting in one place: the other file says "auto", or nothing.

## What it changes

The value of one key in one file. What the run does is then what both files say.

## When it is safe

When the value that is kept is the one that was meant; finitune shows both and does not choose for you.

## References

LianjiaTech/BELLE#154 ("auto" in the DeepSpeed file fixed it); the Trainer's own message: please correct the
following DeepSpeed config values.
"""

from __future__ import annotations

from finitune.finding import Finding, Remedy

safety = "advice"


def propose(finding: Finding | None = None) -> Remedy:
    """For the key of a DeepSpeed file "auto", which takes the value of the trainer; else advice alone."""
    automatic = finding.evidence.get("auto_key") if finding else None
    halves = ("fp16.enabled", "bf16.enabled")
    keys = halves if automatic in halves else [automatic] if automatic else []
    return Remedy(patch=dict.fromkeys(keys, "auto") or None)
