"""Change the settings that the finding names.

## What it changes

The keys of the configuration that the patch of the finding lists, and nothing else.

## When it is safe

When the value was not chosen on purpose. The run changes with it, so only its author can say; what means the same
training is the remedy `equivalent-setting`.

## References

Each chapter of the cause book that proposes it gives its own.
"""

from __future__ import annotations

safety = "advice"


def propose() -> None:
    """The patch comes with the finding; without one there is nothing to propose."""
