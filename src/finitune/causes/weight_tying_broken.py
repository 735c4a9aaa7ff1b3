"""Embedding and output head are declared tied, and are two different matrices.

## What happens

With `tie_word_embeddings` the model has one matrix for both. A file that stores two loses one on loading: the head
becomes a copy of the embedding. An adapter that trains both, or one of them, makes two copies that drift apart and are
tied again on merging, saving or resuming: the loss jumps on the first step after a resume, or the model is garbage
only after it was reloaded.

## How to tell

The flag in `config.json` against the tensors: both present, with different norms. `modules_to_save` or
`target_modules` that name embedding or head of a tied model. Validation loss high while training loss is smooth.

## How to prove

Compare embedding and head element by element after some steps, and again after saving and loading.

## What to do

Keep them one (`ensure_weight_tying`), or untie in the config before training (tie-weights).

## What does not help

Training longer: the two drift further apart. Saving both tensors while the flag stays true: the second is not read.

## References

huggingface/peft#2972 (merging when both are adapted), unslothai/unsloth#9331 (difference 5.895 without, 0 with
`ensure_weight_tying`), facebookresearch/lingua#74 (maintainer), NVIDIA/Megatron-LM#656.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from finitune.chapter import Needs, needs
from finitune.evidence import DECISIVE, HINT, Tells, evidence
from finitune.facts import Adapter, Model, TensorScan, Weights
from finitune.finding import Evidence, Finding, Where

DIFFERENT = 1e-3
"""Relative difference of the rms; equal matrices differ by nothing, and float32 sums over 10**9 elements by less."""

_EMBEDDING = re.compile(r"(embed_tokens|word_embeddings|tok_embeddings|embed_in|wte|shared)\.weight$")
_HEAD = re.compile(r"(lm_head|embed_out|output_layer)\.weight$")
_EITHER = re.compile(r"(embed_tokens|word_embeddings|wte|lm_head|embed_out)$")

remedies = ["tie-weights"]
public_incidents = 6
foresees = "tying named"
unseen = "whether embedding and head are still one"

tells: Tells = {
    "tying-named": (DECISIVE, "embedding and head must be one matrix"),
    "validation-worse": (HINT, "another head is used than was trained"),
    "overlap-true": (-HINT, "an overlapped reduction is another matter"),
    "saved-and-loaded": (HINT, "loading ties the matrices anew"),
}


def foresee(model: Model, weights: Weights | None = None, adapter: Adapter | None = None) -> Iterator[Finding | Needs]:
    if not model.tied:
        return
    yield from needs(weights=weights, adapter=adapter)
    pair = _pair(weights)
    if pair and _differ(*pair):
        embedding, head = pair
        yield Finding(
            severity="warning",  # an output head is lost on loading; whether it mattered only its author knows
            message=f"tie_word_embeddings is true, but {embedding.name} (rms {embedding.rms:.4g}) and {head.name} (rms "
            f"{head.rms:.4g}) differ: on loading the head is replaced by the embedding",
            where=Where(file=head.file, tensor=head.name),
            evidence={"embedding_rms": embedding.rms, "head_rms": head.rms, "tied": True},
        )
    trained = sorted({name for name in _trained(adapter) if _EITHER.search(name)})
    if adapter is not None and trained:
        yield Finding(
            severity="warning",
            message=f"embedding and output head are tied, and {' and '.join(trained)} of the two get weights of their "
            "own: merging, saving or resuming ties them again",
            where=Where(file=adapter.source, key="modules_to_save" if adapter.trainable else "target_modules"),
            evidence={"trained": trained, "tied": True},
        )


def weigh(model: Model, symptoms: set[str]) -> Iterator[Evidence]:
    if model.tied is None:
        return
    if not model.tied:
        yield evidence("tying named", -DECISIVE, "embedding and output head are not tied")
    elif any(symptom.startswith("nonfinite") for symptom in symptoms):
        yield evidence("loss", -DECISIVE, "matrices that drift apart stay finite")


def _pair(weights: Weights | None) -> tuple[TensorScan, TensorScan] | None:
    tensors = weights.tensors if weights else ()
    embedding = next((t for t in tensors if _EMBEDDING.search(t.name)), None)
    head = next((t for t in tensors if _HEAD.search(t.name)), None)
    return (embedding, head) if embedding and head and list(embedding.shape) == list(head.shape) else None


def _differ(embedding: TensorScan, head: TensorScan) -> bool:
    if embedding.nonfinite or head.nonfinite:
        return False  # damaged, which is another chapter
    return abs(embedding.rms - head.rms) > DIFFERENT * max(embedding.rms, head.rms)


def _trained(adapter: Adapter | None) -> Iterator[str]:
    if adapter is not None and adapter.kind not in (None, "none"):
        yield from adapter.trainable or ()
        yield from adapter.target_modules or ()
