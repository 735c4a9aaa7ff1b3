"""Pad with a token of its own, so that the end of a text keeps its label.

## What it changes

The padding token of the tokenizer, in `tokenizer_config.json` and wherever else it is said: a token for padding, a
reserved one or the unknown token, as the vocabulary already has it. Without any of these a new one is needed, with a
new embedding row; that is left to you. The labels of end tokens come back.

## When it is safe

When padding is masked in attention and ignored in the labels, which all common trainers do. A reserved token needs no
resizing; for a new one resize the embedding before the optimizer or engine is made.

## References

unslothai/unsloth#416 (a reserved token as padding fixed it), huggingface/trl#734.
"""

from __future__ import annotations

from finitune.facts import Vocabulary
from finitune.finding import Remedy

safety = "unsafe"


def propose(vocabulary: Vocabulary | None = None) -> Remedy | None:
    if vocabulary is not None and vocabulary.pad_id is not None and vocabulary.pad_id != vocabulary.eos_id:
        return None
    spare = vocabulary.spare_pad if vocabulary else None
    patch = next(({"pad_token": text, "pad_token_id": id_} for text, id_ in (spare or {}).items()), None)
    return Remedy(patch=patch)
