"""Bound the size of each tensor's update, as StableAdamW does.

## What it changes

By hand, `optim: stable_adamw`: the rate of a tensor is divided by the root mean square of g / sqrt(v) where that is
above 1, so that a second moment which lags behind growing gradients does not make updates larger than the rate.

## When it is safe

In the recipe of a run that is long and near the highest rate that it bears. A running run is not changed by it: in no
experiment was it the better cure. Of 18 runs of AdamW whose gradients grew 10,000 times, 0 ended lower with the bound
than with a tenth of the rate (`benchmarks/heal_alternatives.py`). A language model whose embedding's rate jumped 30
times bears the last steps with every update bounded to twice its usual size, and ends at 2.77, beside 2.45 with a lower
rate and 2.11 with smaller updates of the embedding alone. Where nothing clips, clip-gradients does the same for SGD.

## References

Wortsman et al., Stable and low-precision training for large-scale vision-language models (arXiv 2304.13013); Shazeer
and Stern, Adafactor (arXiv 1804.04235), section 6.
"""

from __future__ import annotations

from finitune.finding import Remedy

safety = "advice"


def propose() -> Remedy | None:
    """Nothing by itself: for a run that has failed a lower rate, or clipping, is the better cure."""
    return None
