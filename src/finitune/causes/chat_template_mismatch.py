"""Conversations are written in the chat template of another model.

## What happens

A chat model has learned where turns begin and end from a few marker tokens. With the template of another family those
markers are absent, and the new ones are either tokens that were never trained, or are split into ordinary letters. The
first loss is far above that of the base model, the model answers in a mixture of both formats, does not stop, or fails
outright where the new markers have untrained embedding rows (untrained-token-embeddings).

## How to tell

The markers of the template that the configuration names against those in the model's own `chat_template`. The loss of
step 0, against the loss of the same rows in the model's own template. A new default after an upgrade of the framework.

## How to prove

Evaluate the untrained model on ten rows in both templates: the right one has the lower loss, by far.

## What to do

Train and serve with the template that the model was published with (change-settings). On a base model any template
will do whose markers the tokenizer has; train embedding and head if they are new.

## What does not help

A lower learning rate or more epochs: both formats stay in the model. Adding the markers as tokens without training
their rows.

## References

lm-sys/FastChat#3266 (vicuna preprocessing on Llama-3: every label ignored) and #2494, unslothai/unsloth#1024 (a
llama-3.1 template on a ChatML model), unslothai/unsloth#658 (llama-3 template on a base model),
axolotl-ai-cloud/axolotl#1806 (the default changed with an update).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from finitune.chapter import Needs, needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Training, Vocabulary
from finitune.finding import Evidence, Finding, Remedy, Severity, Where

MARKERS = {
    r"hermes|dolphin|chatml|qwen|yi$|intern(lm)?2": "<|im_start|>", r"llama-?_?3": "<|start_header_id|>",
    r"gemma": "<start_of_turn>", r"glm-?4|chatglm3": "<|assistant|>", r"phi-?_?3": "<|end|>",
}  # fmt: skip
"""Pattern in the name of a template or a model -> a token that its conversations cannot do without."""
CHATML = "<|im_start|>"
"""What most people teach a base model, whatever its family."""
LLAMA3 = "<|start_header_id|>"
"""Its base models hold the markers of the chat format as tokens that pre-training never used."""
FINE_TUNED = re.compile(r"instruct|chat|[-_]it\b|sft|dpo|tuned", re.IGNORECASE)
OTHER_FORMAT = re.compile(r"wizard|vicuna|orca|tulu|deepseek", re.IGNORECASE)
"""Fine-tunes whose format is not that of the family in their name."""

remedies = ["change-settings"]
public_incidents = 1
foresees = "template"
unseen = "whether the chat template is the model's own"

tells: Tells = {
    "template": (STRONG, "the markers may differ from those that the model was trained with"),
    "high-start": (STRONG, "text in another format is unlikely to the model"),
    "template-on-base": (-HINT, "a base model has no template to differ from"),
    "untrained-tokens": (-STRONG, "embedding rows of markers are another matter"),
    "zero-loss-zero-gradient": (STRONG, "markers that are not found leave no target"),
    "infinite-loss": (-STRONG, "a mean over no target is NaN, not infinite"),
    "zero-loss-finite-gradient": (STRONG, "markers that are not found leave a part of the batch without targets"),
    "tokenization-mismatch": (DECISIVE, "the markers are not found where they are expected"),
    "no-supervised-token": (STRONG, "the response marker is not found"),
}


def foresee(training: Training, vocabulary: Vocabulary | None = None) -> Iterator[Finding | Needs]:
    asked = marker_of(training.chat_template or "")
    if asked is None or training.method == "pt":
        return
    stored = vocabulary.template_markers if vocabulary else None
    name = training.model_name or ""
    own = None if OTHER_FORMAT.search(name) else marker_of(name.rstrip("/").rpartition("/")[2])
    if stored:
        if asked in stored:
            return
        theirs, chat = " ".join(stored[:3]), True
    elif stored is None and own is not None and own != asked and (FINE_TUNED.search(name) or asked != CHATML):
        theirs, chat = own, bool(FINE_TUNED.search(name))
    elif stored is None and own == asked == LLAMA3 and not FINE_TUNED.search(name):
        yield _base(training, asked)
        return
    else:
        yield from needs(vocabulary=vocabulary)
        return
    # A chat model unlearns its own format; a base model has none, and its tokenizer may lack the markers.
    severity: Severity = "warning" if chat else "info"
    whose = "the model's own has" if chat else "the model's family has"
    yield Finding(
        severity=severity,
        message=f"template {training.chat_template} marks turns with {asked}; {whose} {theirs}",
        where=Where(file=training.source, key="chat_template"),
        evidence={"template": training.chat_template, "marker": asked, "own_markers": list(stored or [theirs])},
        remedy=Remedy(patch={"chat_template": "tokenizer_default"}) if training.framework == "axolotl" else None,
    )


def _base(training: Training, marker: str) -> Finding:
    return Finding(
        severity="info",  # only the rows themselves can tell; --model reads them
        message=f"{training.model_name} is named like a base model, in which the rows of {marker} and its like were "
        "never trained; give --model to have them read",
        where=Where(file=training.source, key="chat_template"),
        evidence={"template": training.chat_template, "marker": marker},
    )


def weigh(training: Training, symptoms: set[str]) -> Iterator[Evidence]:
    if training.chat_template is not None and any(symptom.startswith("nonfinite") for symptom in symptoms):
        yield evidence("loss", -STRONG, "a wrong template gives a high loss, which is finite")


def marker_of(name: str) -> str | None:
    return next((marker for pattern, marker in MARKERS.items() if re.search(pattern, name, re.IGNORECASE)), None)
