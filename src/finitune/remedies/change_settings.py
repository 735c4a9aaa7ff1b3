"""Change the settings that the finding names.

## What it changes

The keys of the configuration that the patch of the finding lists, and nothing else.

## When it is safe

The patch keeps what the run is about (model, data, steps) and changes how it is computed; look at it all the same,
because only the author knows why a value was chosen.

## References

Each chapter of the cause book that proposes it gives its own.
"""

from __future__ import annotations

from finitune.finding import Cure, Finding

safety = "advice"


def propose(finding: Finding | None = None) -> Cure:
    """Chapters give the patch with their finding; for a finding without one it is advice alone."""
    return finding.remedy if finding and finding.remedy else Cure(name="change-settings", safety="advice")
