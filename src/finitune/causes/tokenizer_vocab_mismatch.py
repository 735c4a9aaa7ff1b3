"""A token id of the data lies outside the embedding.

## What happens

The tokenizer knows more tokens than the model has rows: tokens were added and the embedding was not resized, the files
of another model lie beside the weights, or a padding token took the id after the last row. On a GPU the look-up ends
with a device-side assertion that names no token and poisons the process; with an unchecked kernel it reads foreign
memory.

## How to tell

The largest id of the data, padding included, against the number of rows. `srcIndex < srcSelectDimSize`, "index out of
range in self" or "device-side assert triggered" in the first steps.

## How to prove

Run the batch on the CPU: the error names the index.

## What to do

Use the tokenizer that was published with the weights, or resize the embedding before the optimizer or engine is made
(match-vocabulary).

## What does not help

Clamping ids: the text is then another text. `CUDA_LAUNCH_BLOCKING` finds the line, it does not fix it. Resizing after
the engine was made: optimizer and partitions keep the old shape.

## References

InternRobotics/PointLLM#46 (id 32002, 32000 rows), pytorch/torchtitan#1495 (maintainer), sillsdev/silnlp#1033,
longyuewangdcu/Chinese-Llama-2#4 (added_tokens.json was missing).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from finitune.chapter import Needs, needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Batching, Model, Optimizer, TokenUse, Weights
from finitune.finding import Evidence, Finding, Where

SHOWN = 50
NAMED = 5

_EMBEDDING = re.compile(r"(embed_tokens|word_embeddings|tok_embeddings|embed_in|wte|shared)\.weight$")

remedies = ["match-vocabulary"]
public_incidents = 7
foresees = "token ids"

tells: Tells = {
    "token-out-of-range": (DECISIVE, "an id is outside the table"),
    "target-out-of-range": (STRONG, "a target of a language model is a token, and one is outside the table"),
    "device-side-assert": (STRONG, "the assertion checks an index on the device"),
    "illegal-access": (HINT, "an id outside the table reads outside it"),
    "tokens-added": (HINT, "new ids may have no rows"),
    "probability-tensor": (-STRONG, "the error is about NaN, not about an index"),
    "vocabulary-sizes": (STRONG, "ids and rows are compared"),
    "not-resized": (STRONG, "ids that were added have no rows"),
}


def foresee(
    tokens: TokenUse,
    model: Model,
    weights: Weights | None = None,
    optimizer: Optimizer | None = None,
    batching: Batching | None = None,
) -> Iterator[Finding | Needs]:
    yield from needs(weights=weights)  # the configuration may name more rows than are stored
    rows = _rows(model, weights)
    if rows is None:
        return
    beyond = tokens.ids[(tokens.ids >= rows) & (tokens.counts > 0)].tolist()
    if beyond:
        named = ", ".join(f"{i} {tokens.names.get(i, '')}".rstrip() for i in beyond[:NAMED])
        more = f" and {len(beyond) - NAMED} more" if len(beyond) > NAMED else ""
        yield Finding(
            severity="error",
            message=f"the data holds token ids outside the embedding of {rows} rows: {named}{more}",
            where=Where(file=tokens.source, tokens=beyond[:SHOWN]),
            evidence={"rows": rows, "largest_id": max(beyond), "ids_beyond": len(beyond)},
        )
    elif tokens.pad_id is not None and tokens.pad_id >= rows and _pads(optimizer, batching):
        # A warning: training scripts often resize for the padding token they add.
        yield Finding(
            severity="warning",
            message=f"the padding id {tokens.pad_id} is outside the embedding of {rows} rows; the first padded batch "
            "fails unless the script resizes the embedding",
            where=Where(file=model.path, tokens=[tokens.pad_id]),
            evidence={"rows": rows, "pad_id": tokens.pad_id},
        )


def weigh(tokens: TokenUse, model: Model) -> Iterator[Evidence]:
    if model.vocabulary is None:
        return
    largest = int(tokens.ids.max()) if len(tokens.ids) else -1
    inside = largest < model.vocabulary
    text = f"largest token id of the batch {largest}, {model.vocabulary} rows"
    yield evidence("token ids", -DECISIVE if inside else DECISIVE, text)


def _rows(model: Model, weights: Weights | None) -> int | None:
    """Rows of the stored input embedding; what the config says where the tensor is not found."""
    stored = [t.shape[0] for t in weights.tensors if len(t.shape) == 2 and _EMBEDDING.search(t.name)] if weights else []
    return max(stored) if stored else model.vocabulary


def _pads(optimizer: Optimizer | None, batching: Batching | None) -> bool:
    alone = optimizer is not None and optimizer.batch == 1
    packed = batching is not None and batching.packing is True
    return not alone and not packed
