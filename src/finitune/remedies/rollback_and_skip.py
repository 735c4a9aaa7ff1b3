"""Go back to the last good state, and leave out the batches that did the damage.

## What it changes

Under `finitune run --mode heal`: weights and optimizer state become those of some steps ago, and the steps since are
taken again without the few batches that, by bisecting, are seen to do the damage. By hand: resume from the last good
checkpoint, and leave these batches out of the data, or look at what is in them.

## When it is safe

When few batches are at fault and the others, at the same learning rate, are harmless. Where most steps do damage, the
learning rate or the precision is at fault.

## References

Chowdhery et al., PaLM (2022), section 5.1: restarted 100 steps before a spike, 200 to 500 batches skipped; Zeller and
Hildebrandt, Simplifying and isolating failure-inducing input (2002), for the search.
"""

from __future__ import annotations

from finitune.finding import Remedy

safety = "advice"


def propose() -> Remedy | None:
    """Nothing by itself: which batches it would be is known to a run that is healed alone."""
    return None
