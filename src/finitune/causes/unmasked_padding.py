"""Short rows are filled up with a token that the attention mask does not cover.

## What happens

The rows of a batch get one length by a padding token, and a mask keeps it from being seen. Where the two do not mean
the same token, padding on the left is seen by everything after it. At best it is a beginning that the model never met.
At worst the row of that token is zero, as that of `<unk>` is in Llama-2: the first positions then stay zero through all
layers, every normalisation multiplies their gradient by up to 1/sqrt(eps), and float16 overflows in the backward.
Ludwig fills rows with id 0, but masks the tokenizer's padding token, for which it takes the end token where there is
none.

## How to tell

It fails with batch size 2 and not with 1. The loss is finite, gradients are not, in the lower layers first: Ludwig then
names `layers.0.self_attn.q_proj.lora_A`, which is only the first of many. The mask of the captured batch is 1 where the
padding is. With another padding token in the tokenizer the same run is healthy, and its loss begins lower.

## How to prove

Run the captured step row by row without the padding, or with the padding on the other side: it becomes finite. The rows
in another order do not help.

## What to do

Name the token that fills rows as padding token of the tokenizer (name-pad-token). float32 or bfloat16 for the products
of quantised weights (set-compute-dtype) gives the gradient room, but the padding is still seen.

## What does not help

A lower learning rate and clipping: the overflow comes before either. Batch size 1 is a way round, at a quarter of the
speed. A larger batch only makes it certain.

## References

ludwig-ai/ludwig#3950 and #3787 (NaN from batch size 2 on), huggingface/transformers#27114 (the zero row of Llama-2);
reproduced in this project with Ludwig 0.11.0, whose utils/llm_utils.py was read for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from finitune.chapter import Experiment
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import NEVER_TRAINED, Batching, EmbeddingRows, Optimizer, Precision, Vocabulary
from finitune.finding import Evidence, Finding, Origin, Severity, Where

experiments = [
    Experiment(arm="row-by-row", expect="finite"),
    Experiment(arm="pad-other-side", expect="finite"),
    Experiment(arm="reverse-rows", expect="non-finite", placebo=True),
]
remedies = ["name-pad-token", "set-compute-dtype"]
public_incidents = 2
foresees = "padding"
tells: Tells = {
    "nonfinite-loss": (HINT, "what is computed of padding reaches the other tokens"),
    "gradient-first": (HINT, "NaN at a pad may leave the loss finite, and not the gradient"),
    "from-the-start": (HINT, "no update is needed for it"),
    "sudden": (-STRONG, "most batches have padding, also the first"),
    "nonfinite-evaluation": (STRONG, "evaluation pads in its own way"),
    "nonfinite-parameter": (STRONG, "Ludwig fills short rows with token 0 on the left"),
}


def foresee(
    batching: Batching,
    optimizer: Optimizer | None = None,
    vocabulary: Vocabulary | None = None,
    rows: EmbeddingRows | None = None,
    precision: Precision | None = None,
) -> Iterator[Finding]:
    batch = optimizer.batch if optimizer else None
    alone = batching.packing is True or batch == 1
    if batching.pad_id is None or batching.padding_side != "left" or alone:
        return
    if vocabulary is None:
        yield Finding(
            severity="info",
            message=f"short rows are filled with token {batching.pad_id} on the left; where that is not the padding "
            "token of the tokenizer, the mask lets it be seen",
            where=Where(file=batching.source),
            evidence={"filled_with": batching.pad_id},
        )
        return
    masked = vocabulary.eos_id if vocabulary.pad_id is None else vocabulary.pad_id
    if masked == batching.pad_id:
        return
    short = _ratio(batching.pad_id, rows)
    overflows = (
        short is not None and short <= NEVER_TRAINED and precision is not None and precision.compute == "float16"
    )
    severity: Severity = "error" if overflows else "warning"
    what = "end token" if vocabulary.pad_id is None else "padding token"
    size = "" if short is None or short > NEVER_TRAINED else f"; its embedding row is {short:.1g} of the median"
    end = ", so gradients overflow float16" if overflows else ""
    yield Finding(
        severity=severity,
        message=f"short rows are filled with token {batching.pad_id} on the left, but the mask leaves out {masked}, "
        f"the tokenizer's {what}: the padding is seen{size}{end}",
        where=Where(file=_config_beside(vocabulary.source), key="pad_token", tokens=[batching.pad_id]),
        evidence={
            "filled_with": batching.pad_id,
            "masked": masked,
            "batch": batch,
            **({} if short is None else {"ratio": short}),
        },
    )


def weigh(batching: Batching, origin: Origin | None = None) -> Iterator[Evidence]:
    if batching.pads_attended is None:
        return  # no batch was seen
    if not batching.pads_attended:
        yield evidence("padding", -DECISIVE, "no padding of the batch is seen by attention")
        return
    seen = f"{batching.padded_rows} rows are filled with token {batching.pad_id} on the {batching.padding_side}"
    if batching.padding_side is None:
        return
    if batching.padding_side != "left":
        yield evidence("padding", -STRONG, f"{seen}, where no real token sees it")
        return
    yield evidence("padding", DECISIVE, f"{seen}, and the mask lets it be seen")
    if origin is not None and origin.padding is not None:
        text = "at padded positions" if origin.padding else "at real tokens"
        yield evidence("origin", STRONG if origin.padding else -STRONG, f"the first bad value is {text}")


def _config_beside(tokenizer: str | None) -> str | None:
    """Where the padding token is named: in the file beside the tokenizer's own."""
    return tokenizer and str(Path(tokenizer).with_name("tokenizer_config.json"))


def _ratio(token: int, rows: EmbeddingRows | None) -> float | None:
    if rows is None or not rows.median_rms > 0:
        return None
    found = rows.rms[rows.ids == token]
    return float(found[0]) / rows.median_rms if len(found) else None
