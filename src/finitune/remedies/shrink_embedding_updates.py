"""Let the input embedding learn at a tenth of the rate.

## What it changes

Under `finitune run --mode heal`: the last steps are taken again, and the later ones too, with a tenth or a hundredth of
the update of the input embedding; every other tensor keeps its rate. By hand: a parameter group of its own for the
embedding, with that rate.

## When it is safe

When the embedding leads a divergence: its gradient grows some steps before the loss. Multiplying its gradient, as in
the paper, is divided away by the second moment of Adam after some steps; multiplying its update is not.

## References

Zeng et al., GLM-130B (arXiv 2210.02414), section 3.4: the gradient of the embedding times alpha = 0.1.
"""

from __future__ import annotations

from finitune.finding import Remedy

safety = "advice"


def propose() -> Remedy | None:
    """Nothing by itself: whether it helps is known to a run that is healed alone."""
    return None
