"""Bring the scale of the adapter (alpha over rank) back to what recipes use.

## What it changes

One setting: alpha becomes twice the rank. The adapter's output, and with it the size of every step, shrinks in
proportion.

## When it is safe

Before training. A trained adapter was trained for its own scale: changing alpha afterwards changes the model.

## References

bmaltais/kohya_ss#1758, ml-explore/mlx-examples#620; Hu et al., LoRA (2021), section 4.1, for the scale.
"""

from __future__ import annotations

from finitune.facts import Adapter
from finitune.finding import Remedy

safety = "unsafe"

USUAL = 2
"""alpha over rank: 1 to 2 in the recipes of PEFT, TRL and Axolotl."""

HIGHEST_RANK = 2**14
"""Wider than the layers of the largest models: such a rank is a mistake of its own."""


def propose(adapter: Adapter | None = None) -> Remedy | None:
    if adapter is None or not adapter.rank or adapter.rank > HIGHEST_RANK:
        return None
    return Remedy(patch={"lora_alpha": USUAL * adapter.rank})
