"""Spell the setting as the framework reads it.

## What it changes

One key, or one value, of one file: the run gets the setting that was meant all along.

## When it is safe

When the proposed key is the one that was meant. The run changes with it, so look at what the setting does. Where two
known names are as near, neither is a patch.

## References

shibing624/MedicalGPT#296 (a flag written as bp16).
"""

from __future__ import annotations

from finitune.finding import Finding, Remedy, Renamed

safety = "advice"


def propose(finding: Finding | None = None) -> Remedy:
    """What to write instead, where a known name is near; a patch where there is only one."""
    near = finding.evidence.get("near") if finding else None
    if finding is None or not near or finding.where.key is None:
        return Remedy(text="look the setting up in the release that runs, and remove what it does not have")
    wrong, is_key = finding.where.key, finding.evidence.get("value") is None
    if len(near) > 1:
        which = " or ".join(near)
        return Remedy(text=f"rename {wrong} to {which}" if is_key else f"set {wrong} to {which}")
    return Remedy(patch={wrong: Renamed(renamed_to=near[0]) if is_key else near[0]})
