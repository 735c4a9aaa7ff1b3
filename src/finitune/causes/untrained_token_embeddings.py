"""Tokens used in the data whose embedding rows were never trained.

## What happens

A base model reserves ids that pre-training never used (chat markers, reserved tokens); their rows are zero or tiny.
Normalisation divides by the size of its input, so the gradient of such a row grows like 1/rms(row), up to 1/sqrt(eps)
per normalisation. A later position is rescued in the first layer, because attention mixes in normal values; position
0 sees only itself, stays tiny for several layers, and the growth multiplies by depth: in an 8-layer model of Llama's
shape the largest gradient was 1.5 for a normal row, 4e6 for rms 1e-8 at position 0, 2.5 for the same row at position
5. Exact zeros at position 0 have no bound: NaN at 32 layers even in float32. The cast can make them: the smallest
float16 is 6e-8, so a bfloat16 row of rms 1e-8 becomes zeros.

## How to tell

The rms of the row against the median over all rows, for every id in the data, and whether it begins sequences. The
loss is finite while gradients overflow; in float16 the loss scale falls to its minimum; in bfloat16 the first gradient
norm is enormous, and clipping by it silences every other parameter. The instruct model of the family trains, the base
model does not. Rows that are wholly negative, or short by a factor of ten only, are normal.

## How to prove

Run the captured step again with the rows replaced by draws from the trained rows: it becomes sound. Replacing as
many rows of well-trained tokens must not help.

## What to do

Give the rows a sensible start (reinit-token-rows), or begin sequences with a trained token (prepend-bos), or use the
prompt format that the model was trained with. Train embedding and output head if new tokens must be learned.

## What does not help

A lower learning rate and gradient clipping: the overflow is in the backward pass, before either is used. A larger or
smaller initial loss scale: it only delays the end. float32: the run survives, but clipping starves all other
parameters. The bare mean of all rows: it is itself short, and identical for every new token.

## References

01-ai/Yi#285 (re-assigning two rows fixed it), axolotl-ai-cloud/axolotl#1771, OpenRLHF/OpenRLHF#648,
unslothai/unsloth#658, unslothai/unsloth#1024, unslothai/unsloth#1258 (masked padding is a false alarm),
meta-pytorch/torchtune#2429, NVIDIA-NeMo/Megatron-Bridge#5005, marin-community/marin#954 (norms in real models).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from finitune.cause import Experiment
from finitune.facts import EmbeddingRows, Precision, TokenUse
from finitune.finding import Evidence, Finding, Origin, Severity, Where

TINY_RATIO = 1e-2
"""Row rms over median rms. In an 8-layer model of Llama's shape rows at 1/20 still train at loss scale 2**10, rows at
1/2000 only at 2**3 (seed incident 000); released untrained rows lie further down, trained ones far above."""
MOSTLY_LOST = 0.5
"""Share of a row's non-zero elements that the cast to float16 turns to zero; above it the row is as good as zero."""
NAMED, SHOWN = 5, 50
"""So many tokens are spelled out in the message, so many are in the evidence; all are in the place of the finding."""

experiments = [
    Experiment(arm="replace-embedding-rows={short_rows}", expect="finite"),
    Experiment(arm="replace-embedding-rows={other_rows}", expect="non-finite", placebo=True),
]
remedies = ["reinit-token-rows", "prepend-bos"]
public_incidents = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    token: int
    name: str
    row_rms: float
    ratio: float
    lost_in_cast: float
    first_positions: int


def foresee(tokens: TokenUse, rows: EmbeddingRows, precision: Precision | None = None) -> Iterator[Finding]:
    compute = precision.compute if precision else None
    groups: dict[Severity, list[_Row]] = {}
    for row in _suspicious(tokens, rows):
        groups.setdefault(_severity(row, compute), []).append(row)
    for severity, members in groups.items():
        members.sort(key=lambda row: (row.row_rms, row.token))
        ids = sorted(row.token for row in members)
        yield Finding(
            cause="untrained-token-embeddings",
            severity=severity,
            message=_message(members, rows.median_rms, tokens.sequences, compute),
            where=Where(file=rows.file, tensor=rows.tensor, tokens=ids, rows=ids),
            evidence={
                "row_rms": members[0].row_rms,
                "median_rms": rows.median_rms,
                "ratio": members[0].ratio,
                "first_positions": sum(row.first_positions for row in members),
                "lost_in_cast": max(row.lost_in_cast for row in members),
                "tokens": members[:SHOWN],
            },
        )


def weigh(tokens: TokenUse, rows: EmbeddingRows, origin: Origin | None = None) -> Iterator[Evidence]:
    short = list(_suspicious(tokens, rows))
    if not short:
        yield Evidence(text=f"all {len(rows.ids)} embedding rows of the batch are of normal length", bits=-6.0)
        return
    first = [row for row in short if row.first_positions]
    worst = min(first or short, key=lambda row: row.row_rms)
    size = f"row of token {worst.token} has rms {worst.row_rms:.2g}, {worst.ratio:.1g} of the median"
    if first:
        yield Evidence(text=f"{size}; it begins {worst.first_positions} of {tokens.sequences} sequences", bits=6.0)
    else:
        yield Evidence(text=f"{size}, but none begins a sequence", bits=-1.0)
    if origin is not None and origin.phase == "backward":
        yield Evidence(text="the forward is sound, the backward overflows", bits=2.0)
    elif origin is not None:
        yield Evidence(text=f"the first bad value is in the {origin.phase}, before any gradient", bits=-4.0)


def _suspicious(tokens: TokenUse, rows: EmbeddingRows) -> Iterator[_Row]:
    at = {int(token): i for i, token in enumerate(rows.ids)}
    for token, count, first in zip(tokens.ids.tolist(), tokens.counts.tolist(), tokens.first.tolist(), strict=True):
        padding_only = count == 0 or (token == tokens.pad_id and first == 0)
        if padding_only or token not in at:
            continue
        rms, lost = float(rows.rms[at[token]]), float(rows.lost_in_cast[at[token]])
        ratio = rms / max(rows.median_rms, sys.float_info.min)
        if ratio <= TINY_RATIO or lost >= MOSTLY_LOST:
            name = tokens.names.get(token, "")
            yield _Row(token=token, name=name, row_rms=rms, ratio=ratio, lost_in_cast=lost, first_positions=first)


def _severity(row: _Row, compute: str | None) -> Severity:
    grave = row.row_rms == 0 or compute == "float16"
    return "info" if not row.first_positions else "error" if grave else "warning"


def _message(members: list[_Row], median: float, sequences: int, compute: str | None) -> str:
    named = ", ".join(f"{row.token} {row.name}".rstrip() for row in members[:NAMED])
    more = f" and {len(members) - NAMED} more" if len(members) > NAMED else ""
    lost = max(row.lost_in_cast for row in members)
    cast = f"; up to {lost:.1%} of a row becomes 0 in float16" if lost >= 0.01 else ""
    sizes = f"rms {members[0].row_rms:.2g}, median of all rows {median:.2g}{cast}"
    seen = f"embedding rows of tokens in the data were never trained: {named}{more} ({sizes}). "
    starts = sum(row.first_positions for row in members)
    if not starts:
        return seen + "None begins a sequence, so gradients stay in range; the model has yet to learn them."
    limit = ", beyond what float16 holds" if compute == "float16" else ""
    return seen + f"They begin {starts} of {sequences} sequences, where their gradient grows with every layer{limit}."
