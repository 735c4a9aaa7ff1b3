"""Add a penalty on the logarithm of the softmax's normaliser: the z-loss.

## What it changes

The loss of the next run: 1e-4 times the mean of log(Z)**2 is added, Z the sum of the exponentials of one position's
logits. Logits that drift together, which cross entropy does not see, are held near zero.

## When it is safe

In pretraining and long full fine-tuning near the highest rate that the model bears. A running run is not changed by
it: it acts over thousands of steps, and what a run keeps are its last two dozen. Of 74 runs that diverged within 24
steps after a jump of the rate (llama and gpt2, embeddings tied or not, SGD and AdamW) these steps, taken again, were
borne by 0 with the penalty, by 2 with a hundred times the penalty, by 31 with a tenth of the rate and by 62 with a
hundredth (`benchmarks/heal_alternatives.py`).

## References

Chowdhery et al., PaLM (2022), section 5 (1e-4 log(Z)**2); Wortsman et al., Small-scale proxies for large-scale
transformer training instabilities (arXiv 2309.14322).
"""

from __future__ import annotations

from finitune.finding import Remedy

safety = "advice"


def propose() -> Remedy | None:
    """Nothing by itself: no experiment on the last steps of a run shows that it would have helped."""
    return None
