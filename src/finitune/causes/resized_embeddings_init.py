"""Rows that were added to the embedding differ between ranks, or are not the rows of the new tokens.

## What happens

Adding tokens adds rows. Under ZeRO-3 transformers before 4.32 let every rank draw its own, so each process trained
another model. Resizing after the engine was made leaves optimizer and partition with the old shape. Where the
embedding was padded to a round number before, the new tokens lie inside the padding, and a script that initialises
the last rows touches the wrong ones. An adapter beside a frozen embedding trains none of them: what was drawn stays.

## How to tell

More token ids than rows, so that a resize is needed; ZeRO-3 and the release of transformers. The norms of the rows of
the added ids against the others.

## How to prove

Compare the new rows on two ranks: they must be equal.

## What to do

Install a later transformers (upgrade-package); resize before the engine is made; initialise rows by token id
(match-vocabulary); with an adapter, train the embedding and the head too (modules_to_save, change-settings).

## What does not help

Setting a seed: the ranks draw at different states of it. A higher learning rate for the embedding: the
ranks still train different rows.

## References

huggingface/transformers#25394 (each rank its own rows; fixed in August 2023, released with 4.32),
huggingface/accelerate#2211 (resized after prepare), hiyouga/LLaMA-Factory#10547 (tail of a padded embedding).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from packaging.specifiers import SpecifierSet

from finitune.chapter import Needs, needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Adapter, Model, Parallel, Training, Vocabulary
from finitune.finding import Evidence, Finding, Remedy, Where

EMBEDDING = re.compile(r"embed|wte|lm_head")
AFFECTED = SpecifierSet("<4.32")

remedies = ["upgrade-package", "match-vocabulary"]
public_incidents = 4
foresees = "resizing"

tells: Tells = {
    "huge-norm": (STRONG, "new rows that nobody initialised have huge gradients"),
    "resized": (DECISIVE, "new embedding rows must be initialised alike on every rank"),
    "tokens-added": (HINT, "new tokens need new rows"),
    "zero-3": (HINT, "under ZeRO-3 rows are sharded over ranks"),
    "vocabulary-sizes": (HINT, "ids and rows are compared"),
    "token-out-of-range": (STRONG, "an id is outside the embedding"),
    "target-out-of-range": (STRONG, "a label is outside the head"),
    "device-side-assert": (STRONG, "the assertion checks an index on the device"),
}


def foresee(
    training: Training,
    parallel: Parallel | None = None,
    versions: Mapping[str, str] | None = None,
    model: Model | None = None,
    vocabulary: Vocabulary | None = None,
    adapter: Adapter | None = None,
) -> Iterator[Finding | Needs]:
    if training.added_tokens:
        yield from [_never_trained(training, adapter)] if adapter and _frozen(adapter) else needs(adapter=adapter)
    if parallel is None:
        yield from needs(parallel=parallel)
        return
    version = (versions or {}).get("transformers")
    if version is None and _third(parallel):
        yield Needs("versions.transformers")
    elif parallel.kind == "deepspeed" and parallel.zero_stage is None:
        yield Needs("parallel.zero_stage")
    if not _affected(version, parallel):
        return
    if model is None or vocabulary is None:
        yield from needs(model=model, vocabulary=vocabulary)
        return
    if vocabulary.size is None or model.vocabulary is None or vocabulary.size <= model.vocabulary:
        return
    yield Finding(
        severity="warning",  # certain only if the script resizes under ZeRO-3, as it has to somewhere
        message=f"the tokenizer has {vocabulary.size} ids, the embedding {model.vocabulary} rows; resizing under "
        f"ZeRO-3 with transformers {version} gives every rank rows of its own",
        where=Where(file=vocabulary.source),
        evidence={
            "package": "transformers", "version": version, "fixed_in": "4.32.0", "affected": str(AFFECTED),
            "ids": vocabulary.size, "rows": model.vocabulary,
        },
    )  # fmt: skip


def _frozen(adapter: Adapter) -> bool:
    """An adapter beside an embedding that is neither trained in full nor adapted."""
    trained = [*(adapter.trainable or ()), *(adapter.target_modules or ())]
    return adapter.kind in ("lora", "dora") and not any(EMBEDDING.search(name) for name in trained)


def _never_trained(training: Training, adapter: Adapter) -> Finding:
    tokens = list(training.added_tokens or ())
    return Finding(
        severity="warning",
        message=f"{', '.join(tokens[:3])}{'...' if len(tokens) > 3 else ''}: added to the vocabulary, and the adapter "
        "leaves the embedding frozen: the new rows stay as they were drawn",
        where=Where(file=adapter.source, key="modules_to_save"),
        evidence={"added_tokens": tokens, "trainable": list(adapter.trainable or ())},
        remedy=Remedy(name="change-settings", text='set modules_to_save = ["embed_tokens", "lm_head"] in LoraConfig'),
    )


def weigh(versions: Mapping[str, str], parallel: Parallel) -> Iterator[Evidence]:
    version = versions.get("transformers")
    if None in (parallel.kind, parallel.zero_stage) or (version is None and parallel.zero_stage == 3):
        return
    if _affected(version, parallel):
        yield evidence("resizing", STRONG, "a resize under ZeRO-3 with this release gives every rank rows of its own")
    else:
        # A resize after the optimizer was made leaves new rows out of it in any stage.
        yield evidence("resizing", -HINT, "this release resizes alike on all ranks")


def _affected(version: str | None, parallel: Parallel | None) -> bool:
    return _third(parallel) and version is not None and AFFECTED.contains(version, prereleases=True)


def _third(parallel: Parallel | None) -> bool:
    return parallel is not None and parallel.kind == "deepspeed" and parallel.zero_stage == 3
