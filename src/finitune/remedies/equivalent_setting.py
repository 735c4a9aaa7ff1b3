"""Set another value that means the same training, computed or shown rightly.

## What it changes

The keys of the configuration that the patch of the finding lists, and nothing else.

## When it is safe

Always: the sums are the same, taken in a wider dtype or by another implementation, or the same numbers are printed
unfiltered. What is learned from, and in which steps, stays.

## References

Each chapter of the cause book that proposes it gives its own.
"""

from __future__ import annotations

safety = "safe"


def propose() -> None:
    """The patch comes with the finding; without one there is nothing to propose."""
