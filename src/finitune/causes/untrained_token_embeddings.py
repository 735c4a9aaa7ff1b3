"""Tokens used in the data whose embedding rows were never trained.

## What happens

A base model reserves ids that pre-training never used; their rows are zero, tiny or copies of one another.
Normalisation divides by the size of its input, so the gradient of a short row grows like 1/rms(row). Attention mixes
normal values into later positions; position 0 sees only itself, and the growth multiplies: in an 8-layer model of
Llama's shape the largest gradient was 1.5 for a normal row, 4e6 for rms 1e-8 at position 0, 2.5 at position 5. Exact
zeros there have no bound, and a cast to float16 makes them. Of equal rows the model cannot tell the tokens apart.

## How to tell

The rms of the row against the median over all rows, and whether its token begins sequences; rows that are the same to
the last bit. The loss is finite while gradients overflow; in float16 the loss scale falls to its minimum, in bfloat16
the first gradient norm is enormous. Rows that are wholly negative, or short by a factor of ten only, are normal.

## How to prove

Run the step with the rows replaced by draws from the trained rows: finite. Replacing as many other rows: not.

## What to do

Give the rows a sensible start (reinit-token-rows), begin sequences with a trained token (prepend-bos), or use the
prompt format that the model was trained with. Train embedding and output head if new tokens must be learned.

## What does not help

A lower learning rate, clipping: the overflow comes before. Another loss scale delays the end. In float32 it runs,
but clipping starves all other parameters. The bare mean of all rows is short, and the same for each.

## References

01-ai/Yi#285 (two rows re-assigned), axolotl-ai-cloud/axolotl#1771, OpenRLHF/OpenRLHF#648, unslothai/unsloth#658, #1024,
#1258 (padding is a false alarm), meta-pytorch/torchtune#2429, marin-community/marin#954 (norms in models).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from finitune.chapter import Experiment
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import NEVER_TRAINED, Adapter, EmbeddingRows, Precision, TokenUse
from finitune.finding import Evidence, Finding, Origin, Severity, Where

MOSTLY_LOST = 0.5
"""Share of a row's non-zero elements that the cast to float16 turns to zero; above it the row is as good as zero."""
NAMED, SHOWN = 5, 50  # tokens in the message, and in the evidence; all are in the place of the finding

experiments = [
    Experiment(arm="replace-embedding-rows={short_rows}", expect="finite"),
    Experiment(arm="replace-embedding-rows={other_rows}", expect="non-finite", placebo=True),
]
remedies = ["reinit-token-rows", "prepend-bos"]
public_incidents = 10
foresees = "embedding rows"
tells: Tells = {
    "nonfinite-parameter": (HINT, "an update with a bad gradient made the weights NaN"),
    "nonfinite-loss": (HINT, "an update with a bad gradient made the weights NaN"),
    "loss-scale-collapse": (STRONG, "1/rms of an untrained row has no bound"),
    "scale-at-minimum": (STRONG, "1/rms of an untrained row has no bound"),
    "huge-norm": (DECISIVE, "1/rms of an untrained row has no bound"),
    "untrained-tokens": (DECISIVE, "the program names tokens whose rows were never trained"),
    "finite-loss": (STRONG, "the forward is finite, the gradient through 1/rms is not"),
    "gradient-first": (STRONG, "the forward is finite, the gradient through 1/rms is not"),
    "forward-lost": (-STRONG, "the forward of an untrained row is finite"),
    "template": (STRONG, "tokens of a template may never have been trained"),
    "tokens-added": (STRONG, "new tokens have never been trained"),
    "template-on-base": (STRONG, "a base model has never seen the markers of a chat"),
    "rows-untrained": (STRONG, "rows are said to be untrained"),
    "computes-bfloat16": (HINT, "in bfloat16 nobody looks at the gradient"),
    "hidden-loss": (HINT, "after the bad update the loss is NaN, which is printed as 0"),
    "scratch-works": (STRONG, "other weights are healthy, so these are at fault"),
    "sentinel-norm": (STRONG, "an update was taken although the gradient norm was not finite"),
    "computes-float16": (STRONG, "the gradient of an untrained row exceeds float16"),
    "nonfinite-evaluation": (-STRONG, "evaluation has no backward"),
    "sudden": (-STRONG, "such a token is in most samples, also the first"),
    "climbed": (-STRONG, "an untrained row comes without a climb"),
    "midway": (-HINT, "such a token is in most samples, also the first"),
    "updates-skipped": (STRONG, "the loss scaler skips every step"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    token: int
    name: str
    row_rms: float
    ratio: float
    lost_in_cast: float
    first_positions: int
    copy: bool  # of a usual length, and the same as another row


def foresee(
    tokens: TokenUse, rows: EmbeddingRows, precision: Precision | None = None, adapter: Adapter | None = None
) -> Iterator[Finding]:
    compute = precision.compute if precision else None
    # An adapter that leaves the embedding alone leaves copies equal for ever; full training tells them apart in time.
    frozen = adapter is not None and adapter.kind not in (None, "none") and not adapter.trainable
    groups: dict[tuple[Severity, bool], list[_Row]] = {}
    for row in _suspicious(tokens, rows):
        groups.setdefault((_severity(row, compute, frozen=frozen), row.copy), []).append(row)
    for (severity, _), members in groups.items():
        ids = sorted(row.token for row in members)
        members.sort(key=lambda row: (row.row_rms, row.token))
        yield Finding(
            severity=severity,
            message=_message(members, rows.median_rms, tokens.sequences, compute),
            where=Where(file=rows.file, tensor=rows.tensor, tokens=ids, rows=ids),
            evidence={
                "row_rms": members[0].row_rms, "median_rms": rows.median_rms, "ratio": members[0].ratio,
                "first_positions": sum(row.first_positions for row in members),
                "lost_in_cast": max(row.lost_in_cast for row in members), "tokens": members[:SHOWN],
            },
        )  # fmt: skip


def weigh(tokens: TokenUse, rows: EmbeddingRows, origin: Origin | None = None) -> Iterator[Evidence]:
    short = [row for row in _suspicious(tokens, rows) if not row.copy]
    if not short:
        yield evidence(
            "embedding rows", -DECISIVE, f"all {len(rows.ids)} embedding rows of the batch are of normal length"
        )
        return
    worst = min(short, key=lambda row: (not row.first_positions, row.row_rms))
    size = f"row of token {worst.token} has rms {worst.row_rms:.2g}, {worst.ratio:.1g} of the median"
    text = f"{size}; it begins {worst.first_positions} of {tokens.sequences} sequences"
    yield evidence("embedding rows", DECISIVE if worst.first_positions else -HINT, text)
    if origin is not None:
        text = f"the first bad value arises in the {origin.phase}"
        yield evidence("origin", STRONG if origin.phase == "backward" else -STRONG, text)


def _suspicious(tokens: TokenUse, rows: EmbeddingRows) -> Iterator[_Row]:
    at = {int(token): i for i, token in enumerate(rows.ids)}
    for token, count, first in zip(tokens.ids.tolist(), tokens.counts.tolist(), tokens.first.tolist(), strict=True):
        if count == 0 or (token == tokens.pad_id and first == 0) or token not in at:
            continue  # padding alone
        rms, lost = float(rows.rms[at[token]]), float(rows.lost_in_cast[at[token]])
        ratio = rms / max(rows.median_rms, sys.float_info.min)
        short = ratio <= NEVER_TRAINED or lost >= MOSTLY_LOST
        copy = not short and rows.twins is not None and bool(rows.twins[at[token]]) and token != tokens.pad_id
        if short or copy:
            name, place = tokens.names.get(token, ""), {"first_positions": first, "copy": copy}
            yield _Row(token=token, name=name, row_rms=rms, ratio=ratio, lost_in_cast=lost, **place)


def _severity(row: _Row, compute: str | None, *, frozen: bool) -> Severity:
    if row.copy or not row.first_positions:
        return "warning" if row.copy and frozen else "info"
    return "error" if row.row_rms == 0 or compute == "float16" else "warning"


def _message(members: list[_Row], median: float, sequences: int, compute: str | None) -> str:
    more = f" and {len(members) - NAMED} more" if len(members) > NAMED else ""
    named = ", ".join(f"{row.token} {row.name}".rstrip() for row in members[:NAMED]) + more
    lost = max(row.lost_in_cast for row in members)
    cast = f"; up to {lost:.1%} of a row becomes 0 in float16" if lost >= 0.01 else ""
    sizes = f"(rms {members[0].row_rms:.2g}, median of all rows {median:.2g}{cast})"
    if members[0].copy:
        return f"embedding rows of {len(members)} tokens in the data are copies of other rows: {named} {sizes}"
    seen = f"embedding rows of tokens in the data were never trained: {named} {sizes}. "
    if not (starts := sum(row.first_positions for row in members)):
        return seen + "None begins a sequence, so gradients stay in range; the model has yet to learn them."
    beyond = ", beyond what float16 holds" if compute == "float16" else ""
    return f"{seen}They begin {starts} of {sequences} sequences, where their gradient grows with every layer{beyond}."
