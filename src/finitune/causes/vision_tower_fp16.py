"""The frozen encoder of images or sound overflows in float16, while the language model is fine.

## What happens

A model that sees is two models: an encoder (SigLIP, ViT, VAE) and a language model behind it. The encoder is often
frozen and cast with the rest to float16, though it was trained in bfloat16 or float32; its last blocks, poolers and
resamplers reach values beyond 65504. Batches of text alone train, the first one with an image is NaN.

## How to tell

Only batches with images fail. The first bad value is in a module of the encoder. The VAE of SDXL is known for it, and
so are the resamplers of some vision models.

## How to prove

Run the captured step with the encoder's module in float32: it becomes sound. Without its images the batch is sound.

## What to do

Compute in bfloat16 (use-bfloat16), or keep the encoder in float32 and cast its output (float32-modules).

## What does not help

A lower learning rate: the encoder does not learn. `do_sample=False` at inference: NaN logits stay NaN. Training the
language model longer.

## References

HighCWu/control-lora-v3#2 (VAE of SDXL, sound in bfloat16), NVIDIA/Megatron-LM#1407, OpenBMB/MiniCPM-V (several
reports of NaN at inference after fine-tuning in float16).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from finitune.facts import Model, Precision, Training
from finitune.finding import Evidence, Finding, Origin, Where

SEES = re.compile(
    r"llava|minicpm-?_?v|internvl|idefics|paligemma|mllama|blip|cogvlm|florence|smolvlm|pixtral|sdxl|omnilmm|"
    r"(^|[-_/.\d])vl($|[-_])|_vl\b"
)
_ENCODER = re.compile(r"vision|visual|vpm|resampler|image|vae|encoder\.blocks|audio", re.IGNORECASE)

remedies = ["use-bfloat16", "float32-modules"]
public_incidents = 3


def foresee(precision: Precision, model: Model | None = None, training: Training | None = None) -> Iterator[Finding]:
    name = " ".join(v.lower() for v in (model and model.family, training and training.model_name) if v)
    if precision.compute != "float16" or not SEES.search(name):
        return
    file, _, key = (precision.source or "").rpartition(": ")
    yield Finding(
        cause="vision-tower-fp16",
        severity="info",  # many encoders fit float16; the first batch with an image tells
        message=f"the run computes in float16 and {name.split()[-1]} has an encoder of images, trained with a wider "
        "range: try one batch with an image first",
        where=Where(file=file or precision.source, key=key if file else None),
        evidence={"compute": "float16", "model": name},
    )


def weigh(origin: Origin) -> Iterator[Evidence]:
    inside = bool(_ENCODER.search(origin.module or ""))
    if not inside or origin.dtype != "float16":
        yield Evidence(text=f"the first bad value is in {origin.module}, in {origin.dtype}", bits=-8.0)
    else:
        yield Evidence(text=f"the first bad value is in the encoder, {origin.module}, in float16", bits=5.0)
