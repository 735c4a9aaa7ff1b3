"""The end token is never a target: masked where it is padding too, or missing from every row.

## What happens

A collator that sets the label of every padding id to -100 cannot tell the padding behind a text from the end token
that belongs to it. The model never learns to stop: the loss is healthy, the text goes on and on. Adding the end token
to the data changes nothing, because its label is masked again. The same comes of rows that never held an end token:
a chat template that closes an answer with neither the end token nor a special token of its own.

## How to tell

None of the rendered rows ends with the end token; or the padding id equals the end id, and no end token is supervised;
or a program sets `pad_token = eos_token`, writes `eos_token` behind its texts and collates by id. The collator is
transformers' `DataCollatorForLanguageModeling`, which TRL used before 0.17; collators that know where the padding
begins (TRL since, Axolotl, LLaMA-Factory) are not concerned.

## How to prove

Collate one batch and count the labels that are the end id: none.

## What to do

Pad with another token (own-pad-token), or mask by position instead of by id. Where the end is missing, write
`{{ eos_token }}` after each answer in the chat template.

## What does not help

Adding the end token a second time. More epochs. A stop string at generation hides it.

## References

unslothai/unsloth#416 (a reserved token as padding fixed it), huggingface/trl#734, huggingface/transformers#22794 (the
tokenizer did not append the end token, and the collator masked it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.specifiers import SpecifierSet

from finitune.chapter import Needs, needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Batching, Labels, TokenUse, Training, Vocabulary
from finitune.finding import Evidence, Finding, Remedy, Where

MASKS_BY_ID = SpecifierSet("<0.17")
"""Releases of TRL whose SFTTrainer used the collator of transformers; its own came with 0.17."""
CONCERNED = ("transformers", "trl")
"""Frameworks whose collator masks by id, or did. The others build labels where they still know what padding is."""
remedies = ["own-pad-token"]
public_incidents = 6
foresees = "pads with eos"
unseen = "whether the end token is a target"

tells: Tells = {
    "never-stops": (DECISIVE, "the end token was never a target"),
    "pads-with-eos": (STRONG, "masking the labels of padding masks those of eos"),
    "nonfinite-gradient": (-STRONG, "a masked end token leaves every number finite"),
    "nonfinite-loss": (-STRONG, "a masked end token leaves every number finite"),
    "eos-hidden": (STRONG, "the end token is said to be no target"),
    "zero-loss-zero-gradient": (STRONG, "masked labels may leave no target"),
}


def _masked(labels: Labels, held: int, vocabulary: Vocabulary) -> Finding:
    """Of labels that somebody made: the end token is in the rows, and in none of them a target."""
    end, pad = vocabulary.eos_id, vocabulary.pad_id
    why = ", which is padding too and masked with it," if end == pad else ""
    return Finding(
        severity="warning",
        message=f"the end token ({end}){why} is in {held} of {len(labels.supervised)} rows and a target in none of "
        "them: the model does not learn to stop",
        where=Where(file=labels.source, tokens=[end] if end is not None else None),
        evidence={"pad_id": pad, "eos_id": end, "rows_with_end": held, "rows_that_learn_it": 0},
        remedy=None if end == pad else Remedy(name="change-settings", text="keep the label of the end token"),
    )


def _absent(labels: Labels, rows: int, eos: int | None) -> Finding:
    line = int(labels.row_lines[0]) if labels.row_lines is not None and len(labels.row_lines) else None
    return Finding(
        severity="warning",
        message=f"none of {rows} answers ends with the end token ({eos}): the model does not learn to stop",
        where=Where(file=labels.source, line=line, tokens=None if eos is None else [eos]),
        evidence={"eos_id": eos, "rows": rows, "rows_with_end": 0},
        remedy=Remedy(name="change-settings", text="write {{ eos_token }} after each answer in the chat template, or "
                      "append the end token to each row"),
    )  # fmt: skip


def _ends(labels: Labels, vocabulary: Vocabulary, training: Training | None) -> Iterator[Finding | Needs]:
    """What the rows themselves show."""
    ends = labels.end_tokens
    if ends is None or (training is not None and training.framework not in (None, *CONCERNED)):
        yield Needs("labels.end_tokens")  # plain text, or turns that a framework writes in a way of its own
    elif not ends["held"] and labels.supervised.any():
        yield _absent(labels, ends["rows"], vocabulary.eos_id)
    elif ends["held"] and ends.get("learned") == 0 and labels.supervised.any():
        yield _masked(labels, ends["held"], vocabulary)


def foresee(
    tokens: TokenUse | None = None,
    vocabulary: Vocabulary | None = None,
    training: Training | None = None,
    batching: Batching | None = None,
    versions: Mapping[str, str] | None = None,
    labels: Labels | None = None,
) -> Iterator[Finding | Needs]:
    if batching is not None and batching.masks_end:
        said = "the end token that the program writes is padding too, and its collator masks that by id: the model does"
        yield Finding(severity="warning", message=f"{said} not learn to stop", evidence={"pad": batching.pad_token},
                      where=Where(file=batching.source, key="pad_token"))  # fmt: skip
        return
    yield from needs(tokens=tokens, vocabulary=vocabulary, batching=batching)
    if tokens is None or vocabulary is None:
        return
    written = int(tokens.counts[tokens.ids == vocabulary.eos_id].sum()) if vocabulary.eos_id is not None else 0
    ends = labels.end_tokens if labels is not None else None
    if labels is not None and vocabulary.eos_id is not None and (ends is not None or not written):
        yield from _ends(labels, vocabulary, training)
        if ends is None or "learned" in ends or not ends["held"]:
            return
    end, pad = vocabulary.eos_id, vocabulary.pad_id
    own = batching is not None and batching.pad_token is not None and batching.pad_token != batching.eos_token
    if end is None or pad != end or own or not written or (batching and batching.packing):
        return
    framework = training.framework if training else None
    trl = (versions or {}).get("trl")
    if framework not in CONCERNED:
        yield from needs(training=training)
        return
    if trl is None:
        yield Needs("versions.trl")
        return
    if not MASKS_BY_ID.contains(trl, prereleases=True):
        return
    yield Finding(
        severity="warning",  # every number of the training is finite; the model does not learn to stop
        message=f"padding and end are the same token ({end}), and the collator of TRL {trl} masks it by id: none of "
        f"the {written} end tokens in the data would be learned",
        where=Where(file=vocabulary.source, tokens=[end]),
        evidence={"pad_id": pad, "eos_id": end, "end_tokens": written, "trl": trl, "framework": framework},
    )


def weigh(vocabulary: Vocabulary, symptoms: set[str]) -> Iterator[Evidence]:
    if vocabulary.pad_id is None or vocabulary.eos_id is None:
        return
    if vocabulary.pad_id != vocabulary.eos_id:
        yield evidence("pads with eos", -DECISIVE, "padding and end are different tokens")
        return
    yield evidence("pads with eos", HINT, "padding and end are the same token")
    if symptoms:
        yield evidence("loss", -DECISIVE, "but a masked end token leaves every number healthy")
