"""Spell the setting as the framework reads it.

## What it changes

One key, or one value, of one file: the run gets the setting that was meant all along.

## When it is safe

When the proposed key is the one that was meant. The run changes with it, so look at what the setting does.

## References

shibing624/MedicalGPT#296 (a flag written as bp16).
"""

from __future__ import annotations

from finitune.finding import Finding, Remedy

safety = "advice"


def propose(finding: Finding | None = None) -> Remedy:
    """What to write instead, where a known name is near."""
    near = finding.evidence.get("near") if finding else None
    if finding is None or not near:
        return Remedy(text="look the setting up in the release that runs, and remove what it does not have")
    said, wrong = finding.evidence.get("value"), finding.where.key
    return Remedy(text=f"set {wrong} to {near[0]}" if said is not None else f"rename {wrong} to {near[0]}")
