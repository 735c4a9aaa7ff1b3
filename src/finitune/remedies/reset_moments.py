"""Let the optimizer forget the moments that one outlier has filled.

## What it changes

The state of the optimizer for the tensors at fault: mean and mean square of the gradients, and the count of steps that
corrects their bias, begin anew. Weights and settings stay. In a run under `finitune run --mode heal` this happens while
the run goes on; by hand it is to resume from the weights of a checkpoint without its optimizer state.

## When it is safe

When the weights are good and the moments are not. The first steps after it are of full size, as at the beginning of a
run, so the rate should be one that the run could begin with.

## References

Huang et al., SPAM (arXiv 2501.06842), which resets the moments of Adam after spikes; Molybog et al., A theory on Adam
instability (arXiv 2304.09871).
"""

from __future__ import annotations

from finitune.finding import Remedy

safety = "unsafe"


def propose() -> Remedy:
    """No key of a configuration says it."""
    return Remedy(text="resume from the weights alone, without the optimizer's state, and clip the gradients")
