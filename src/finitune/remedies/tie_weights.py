"""Keep tied embedding and output head one tensor, or untie them in so many words.

## What it changes

With PEFT `ensure_weight_tying=True` trains one adapter for both and saves them together. The other way is
`tie_word_embeddings: false` in `config.json`, after which both tensors are stored and loaded.

## When it is safe

Untying costs the memory of one more matrix and must happen before training; untying afterwards keeps what was
trained. Tying two matrices that differ discards one of them.

## References

huggingface/peft#2972, unslothai/unsloth#9331, facebookresearch/lingua#74.
"""

from __future__ import annotations

from finitune.facts import Adapter
from finitune.finding import Remedy

safety = "unsafe"


def propose(adapter: Adapter | None = None) -> Remedy:
    trained = adapter is not None and adapter.kind not in (None, "none")
    return Remedy(
        patch={"ensure_weight_tying": True} if trained else {"tie_word_embeddings": False},
    )
