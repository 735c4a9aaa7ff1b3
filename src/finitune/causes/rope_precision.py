"""Rotary positions are computed in a 16-bit dtype, where far positions coincide.

## What happens

Rotary embedding turns a position into angles: position times frequency. bfloat16 holds whole numbers up to 256 and
float16 up to 2048, so beyond that neighbours share a position: of 8192 positions 897 are left in bfloat16. Frequencies
themselves are off by up to 0.2 %, which is several radians at position 4096. Frameworks compute both in float32, but
the table of frequencies is a buffer of the model, and what casts the whole model (`.half()`, `.bfloat16()`, a DeepSpeed
engine in 16 bits) casts it as well.

## How to tell

Print the dtype of `inv_freq` after the engine was made: it must be float32. Quality falls with the length of the
context, and not with short texts. The float16 run matches the float32 one and the bfloat16 run does not. Cosine of the
angle built in bfloat16 is off by 0.04 at position 256, 0.44 at 1024, 1.6 at 8191 (measured, base 10000).

## How to prove

Compute cos and sin of the longest position in float32 and in the model, and compare.

## What to do

Install a release that computes positions in float32 (upgrade-package); keep the rotary module in float32
(float32-modules) where the whole model is cast.

## What does not help

A larger rope_theta: low frequencies are rounded as well. Training longer: the model adapts to positions that inference
in float32 does not have.

## References

EleutherAI/gpt-neox#1003 and #1016, huggingface/transformers#25681 (float16 and bfloat16 tables), #29496 (Mistral) and
#29285 (float32 positions, in 4.39), hiyouga/LLaMA-Factory#2483 (ZeRO-3 against ZeRO-2), vllm-project/vllm#1004
(rope_theta 1e6), huggingface/candle#3520.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from packaging.specifiers import SpecifierSet

from finitune.chapter import Needs, needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Batching, Model, Parallel, Precision
from finitune.finding import Evidence, Finding, Severity, Where

WHOLE_NUMBERS = {"bfloat16": 256, "float16": 2048}
"""Up to here every position has a number of its own."""
TYPED_POSITIONS = SpecifierSet("<4.39")
"""Releases of transformers that build positions in the dtype of the frequencies."""
LONG = 8192
"""From here on the rounding of the frequencies alone is worth a look."""
ROTARY = re.compile(r"^(llama|mistral|mixtral|qwen|gemma|phi|gpt_neox|gptj|falcon|olmo|deepseek|internlm|baichuan|yi)")

remedies = ["upgrade-package", "float32-modules"]
public_incidents = 7
foresees = "rotary"

tells: Tells = {
    "rotary": (STRONG, "positions above 256 are not exact in bfloat16"),
    "long-context": (STRONG, "the error grows with the position"),
    "float16-works": (STRONG, "float16 has more digits than bfloat16, not more range"),
    "computes-bfloat16": (HINT, "bfloat16 has 8 significant bits"),
    "worse-than-float32": (HINT, "it is finite, and worse than float32"),
    "bfloat16-fails": (STRONG, "bfloat16 has too few digits for positions"),
    "nonfinite-gradient": (-STRONG, "positions that coincide leave every number finite"),
}


def foresee(
    precision: Precision,
    parallel: Parallel,
    batching: Batching,
    model: Model | None = None,
    versions: Mapping[str, str] | None = None,
) -> Iterator[Finding | Needs]:
    dtype = precision.compute or ""
    length = batching.max_length
    rotary = model is not None and (model.rope_theta is not None or bool(ROTARY.match(model.family or "")))
    cast = parallel.kind == "deepspeed"
    if dtype not in WHOLE_NUMBERS or not cast or length is None or length <= WHOLE_NUMBERS[dtype]:
        return
    if not rotary:
        yield from needs(model=model)
        return
    version = (versions or {}).get("transformers")
    old = version is not None and TYPED_POSITIONS.contains(version, prereleases=True)
    if not old and length < LONG:
        if version is None:
            yield Needs("versions.transformers")
        return
    # Positions that coincide change the model; frequencies that are rounded change it a little, the same every step.
    severity: Severity = "warning" if old else "info"
    what = (
        f"transformers {version} then builds {length} positions in {dtype}, which tells {WHOLE_NUMBERS[dtype]} apart"
        if old
        else f"rotary frequencies are then rounded to {dtype}, which is radians at {length} positions"
    )
    yield Finding(
        severity=severity,
        message=f"the DeepSpeed engine casts the whole model to {dtype}, buffers included; {what}",
        where=Where(file=batching.source, key="max_length"),
        evidence={
            "max_length": length, "whole_numbers_up_to": WHOLE_NUMBERS[dtype],
            "rope_theta": model.rope_theta if model else None,
            **({"package": "transformers", "version": version, "fixed_in": "4.39.0"} if old else {}),
        },
    )  # fmt: skip


def weigh(precision: Precision, symptoms: set[str]) -> Iterator[Evidence]:
    if precision.compute is None:
        return
    if precision.compute not in WHOLE_NUMBERS:
        yield evidence("rotary", -DECISIVE, "positions are computed in float32")
    elif symptoms:
        yield evidence("loss", -DECISIVE, "but positions that coincide leave every number finite")
