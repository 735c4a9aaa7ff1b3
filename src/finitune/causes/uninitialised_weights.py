"""The model has weights that no file holds, so the run starts from random or stale memory.

## What happens

A loader fills in what a file does not have: a layer, an output head, a classifier. Most draw random numbers and say so
in one line among hundreds; some leave the memory as it was, which may hold 1e38 or NaN. A causal model without its
head starts from a loss of ln(vocabulary) or far above, and the fine-tune learns a head instead of the task.

## How to tell

Compare the names in the files with those that the configuration promises: as many layers as it says, and a head
wherever embedding and head are not tied. The warning "Some weights ... were not initialized from the model
checkpoint and are newly initialized". The loss of step 0 is far above that of the published model, whatever the data.

## How to prove

Load twice with two seeds: the weights that differ are the uninitialised ones. Scan them for NaN and huge values.

## What to do

Take the complete model (restore-weights); save head and layers when a base is exported. New parts on purpose
(a classifier) want a small normal start and a look at the first loss.

## What does not help

A lower learning rate or a warm-up: the start is wrong, not the step. More data.

## References

deepspeedai/DeepSpeed#5241 (`torch.empty` parameters), huggingface/transformers#28234 (new head of Phi-1.5, NaN in
every dtype), NVIDIA-NeMo/Automodel#2722 (experts that stayed at their random start).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from finitune.chapter import Needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Model, Optimizer, TensorScan, Weights
from finitune.finding import Evidence, Finding, Origin, Severity, Where

SHOWN = 5
LISTED = 1000

_EMBEDDING = re.compile(r"(embed_tokens|word_embeddings|tok_embeddings|embed_in|wte)\.weight$")
_HEAD = re.compile(r"(lm_head|embed_out|output_layer|score|classifier|head|output|decoder)\.(\w+\.)*weight$")
_BARE = re.compile(r"(embed_tokens|wte|layers|h|encoder|embeddings)\.")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks?|layer)\.(\d{1,9})\.")

remedies = ["restore-weights"]
public_incidents = 4
foresees = "weights"

tells: Tells = {
    "memory-uninitialised": (DECISIVE, "weights hold what was in memory before"),
    "newly-initialised": (STRONG, "some weights are in no file"),
    "remote-code": (STRONG, "code outside the library may not initialise"),
    "high-start": (HINT, "random weights guess badly from the start"),
    "huge-norm": (STRONG, "what was in memory may be huge"),
    "float32-fails": (HINT, "the range of the dtype is not the matter"),
    "sudden": (-DECISIVE, "the first step would show it"),
}


def foresee(weights: Weights, model: Model, optimizer: Optimizer | None = None) -> Iterator[Finding | Needs]:
    names = [tensor.name for tensor in weights.tensors]
    # A file that is missing or cut short is reported as that; an adapter holds a part on purpose.
    if weights.problems or not any(_EMBEDDING.search(name) for name in names) or any("lora_" in n for n in names):
        return
    absent, count = _absent_layers(names, model.layers)
    if count:
        listed = ", ".join(map(str, absent[:SHOWN])) + (", ..." if count > SHOWN else "")
        yield _finding(
            weights, f"config.json says {model.layers} layers, and no weights are stored for {count} of them "
            f"({listed}): they would start from random numbers", {"layers": model.layers, "absent": absent},
        )  # fmt: skip
    if model.tied is False and not any(_HEAD.search(name) for name in names):
        if optimizer is None:  # only training needs a head
            yield Needs("optimizer")
            return
        # Saved without the wrapper of a language model it may be meant as an encoder, which has no head.
        bare = any(_BARE.match(name) for name in names)
        yield _finding(
            weights, "embedding and output head are not tied, and no output head is stored: a language model would "
            "start with a random one, at a loss of ln(vocabulary) or more", {"tied": False, "tensors": len(names)},
            severity="info" if bare else "error",
        )  # fmt: skip


def weigh(weights: Weights, origin: Origin | None = None) -> Iterator[Evidence]:
    bad = [tensor for tensor in weights.tensors if tensor.nonfinite or _garbage(tensor)]
    if not bad:
        yield evidence("weights", -STRONG, "every weight is finite and of a usual size")
    elif origin is not None and origin.phase == "parameter":
        yield evidence("origin", STRONG, f"{bad[0].name} holds what memory may hold (largest {bad[0].peak:.3g})")


def _absent_layers(names: Sequence[str], layers: int | None) -> tuple[list[int], int]:
    """The first of them and how many there are; a configuration can name any number of layers."""
    held = {int(found[1]) for name in names if (found := _LAYER.search(name))}
    if not held or not layers:
        return [], 0
    absent = (index for index in range(layers) if index not in held)
    return list(islice(absent, LISTED)), max(layers - sum(index < layers for index in held), 0)


def _garbage(tensor: TensorScan) -> bool:
    return tensor.rms > 1e4  # no released model has a tensor of this size


def _finding(weights: Weights, text: str, evidence: dict[str, object], severity: Severity = "error") -> Finding:
    return Finding(
        severity=severity, message=text, where=Where(file=weights.source),
        evidence=evidence,
    )  # fmt: skip
