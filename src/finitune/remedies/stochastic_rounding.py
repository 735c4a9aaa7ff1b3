"""Round updated weights in bfloat16 up or down by chance, in proportion.

## What it changes

How an updated weight becomes a bfloat16: not the nearest number, which gives a small update back each time, but one of
the two neighbours, by chance, so that the weight moves by the update on average. By hand: an optimizer with stochastic
rounding, such as `AdamW8bit` of torchao with `bf16_stochastic_round=True`.

## When it is safe

Where float32 copies of the weights do not fit. With them (float32-trainable-weights) the same run is smoother: each
rounding by chance adds noise of the size of the last digit.

## References

Zamirai et al., Revisiting BFloat16 training (arXiv 2010.06192); arXiv 2502.20566 (bfloat16 with stochastic rounding
beside mixed precision, up to 6.7 billion weights).
"""

from __future__ import annotations

from finitune.finding import Remedy

safety = "advice"


def propose() -> Remedy | None:
    """Nothing by itself: which optimizer has it depends on the trainer, and float32 copies come first."""
    return None
