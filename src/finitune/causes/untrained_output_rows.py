"""Tokens that are to be learned have rows in the output head that were never trained.

## What happens

The head gives each token a logit: the product of its row with the last hidden state. A row that is zero or tiny gives
a logit near 0, while trained models keep the logits of most of the vocabulary far below that: the untrained token
looks likely everywhere, and the first updates only push it down. Rows that are equal to the last bit give equal logits,
so the model cannot prefer one of the tokens to the other. With an adapter that leaves the head frozen neither is ever
fixed: the end token is never produced, or always.

## How to tell

The rms of the head's rows, for every id that is a target, against the median of all rows, and rows that are the same.
Only where the head is a matrix of its own (`tie_word_embeddings` false).

## How to prove

Look at the probability of the token at the first step, on any text: far above one over the vocabulary.

## What to do

Give the rows a start (reinit-token-rows), train the head with the adapter (`modules_to_save: [lm_head]`), or use the
format that the model was trained with.

## What does not help

Repairing the rows of the embedding only: the head is another matrix. More epochs with a frozen head.

## References

Hewitt, Initializing new word embeddings (mean start bounds the divergence by log(1 + k/n)); unslothai/unsloth#658 and
#1024; meta-pytorch/torchtune#2429 (an end token that was never trained is never produced).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from finitune.evidence import DECISIVE, STRONG, evidence
from finitune.facts import NEVER_TRAINED, Adapter, EmbeddingRows, Model, TokenUse
from finitune.finding import Evidence, Finding, Severity, Where

NAMED, SHOWN = 5, 50

remedies = ["reinit-token-rows"]
public_incidents = 2
foresees = "output rows"


def foresee(
    tokens: TokenUse,
    head_rows: EmbeddingRows,
    model: Model | None = None,
    adapter: Adapter | None = None,
) -> Iterator[Finding]:
    ids = [] if model and model.tied else _untrained(tokens, head_rows)
    if not ids:
        return
    # A frozen head stays as it is; a trained one learns the rows, after some steps of nonsense.
    frozen = adapter is not None and adapter.kind not in (None, "none") and not _trained(adapter)
    severity: Severity = "warning" if frozen else "info"
    named = ", ".join(f"{i} {tokens.names.get(i, '')}".rstrip() for i in ids[:NAMED])
    more = f" and {len(ids) - NAMED} more" if len(ids) > NAMED else ""
    smallest = float(head_rows.rms[ids].min())
    outlook = "and the adapter leaves the head as it is" if frozen else "so their first logits mean nothing"
    yield Finding(
        severity=severity,
        message=f"rows of the output head were never trained, or are equal: {named}{more} (rms from {smallest:.2g}, "
        f"median of all rows {head_rows.median_rms:.2g}), {outlook}",
        where=Where(file=head_rows.file, tensor=head_rows.tensor, tokens=ids[:SHOWN], rows=ids[:SHOWN]),
        evidence={
            "rows": len(ids), "row_rms": smallest, "median_rms": head_rows.median_rms, "head_frozen": frozen,
        },
    )  # fmt: skip


def weigh(tokens: TokenUse, head_rows: EmbeddingRows, symptoms: set[str]) -> Iterator[Evidence]:
    if not _untrained(tokens, head_rows):
        yield evidence("output rows", -DECISIVE, "the head's rows of all tokens of the batch are of normal length")
    elif any(symptom.startswith("nonfinite") for symptom in symptoms):
        yield evidence("loss", -STRONG, "a short row of the head gives a logit near 0, which is finite")


def _untrained(tokens: TokenUse, rows: EmbeddingRows) -> list[int]:
    """Ids of the data whose row is tiny, or the same as the row of another id of the data."""
    used = tokens.ids[(tokens.counts > 0) & (tokens.ids < len(rows.rms))]
    used = used[used != tokens.pad_id] if tokens.pad_id is not None else used
    tiny = used[rows.rms[used] <= NEVER_TRAINED * max(rows.median_rms, sys.float_info.min)]
    twins = used[rows.twins[used] > 0] if rows.twins is not None else used[:0]
    _, group, counts = np.unique(rows.rms[twins], return_inverse=True, return_counts=True)
    return sorted({*tiny.tolist(), *twins[counts[group] > 1].tolist()})


def _trained(adapter: Adapter) -> bool:
    names = [*(adapter.trainable or ()), *(adapter.target_modules or ())]
    return any("lm_head" in name or "embed_out" in name for name in names)
