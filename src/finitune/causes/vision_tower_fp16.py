"""The encoder of images or sound overflows in float16, while the language model beside it is finite.

## What happens

A vision tower, an audio encoder or a VAE was trained in a wider format and has an outlier channel: the MLP of a SigLIP
or CLIP layer gives more than 65504 for some images. In float16 it becomes inf, the next layer norm makes NaN of it, and
the NaN enters the language model with the image tokens. Prompts of text alone never call the tower and are fine.

## How to tell

Only batches with images fail; text works, and so do plain images where photographs do not. The first bad value lies in
the tower. From the weights alone: a row of a matrix behind a layer norm reaches at most sqrt(d) times the norm of the
row times the norm's weights, and in a healthy tower that is far below 65504.

## How to prove

Run the captured step again with the whole tower in float32: it becomes finite. One MLP of another layer in float32 must
not help.

## What to do

Keep the tower in float32 (float32-tower), or compute in bfloat16 where the card can (use-bfloat16).

## What does not help

Fused attention: the value arises in an MLP. Freezing the tower: its forward runs all the same. A lower learning rate or
a smaller loss scale: the forward has already failed. One layer alone in float32, when its output is cast down again.

## References

unslothai/unsloth-zoo#787 (Qwen3-VL, linear_fc1 above 65504), HighCWu/control-lora-v3#2 (the VAE of SDXL),
OpenBMB/MiniCPM-V#466 (the unmodified model fails on an image in float16; the cause was not settled there).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from finitune.chapter import Experiment, Needs, needs
from finitune.evidence import DECISIVE, FLOAT16_ONLY, HINT, STRONG, Tells, evidence
from finitune.facts import MAX_FLOAT16, Model, Precision, Training, Weights
from finitune.finding import Evidence, Finding, Origin, Where
from finitune.naming import tower_of

SEES = re.compile(
    r"llava|minicpm-?_?v|internvl|idefics|paligemma|mllama|blip|cogvlm|florence|smolvlm|pixtral|sdxl|omnilmm|"
    r"(^|[-_/.\d])vl($|[-_])|_vl\b"
)

experiments = [
    Experiment(arm="module-float32={tower}", expect="finite"),
    Experiment(arm="module-float32={sibling}", expect="non-finite", placebo=True),
]
remedies = ["float32-tower", "use-bfloat16"]
public_incidents = 3
foresees = "image encoder"

tells: Tells = {
    **FLOAT16_ONLY,
    "only-images-fail": (DECISIVE, "only what passes the image encoder fails"),
    "images": (HINT, "there is an encoder of images"),
    "computes-float16": (STRONG, "the encoder overflows above 65504"),
    "denoises": (HINT, "the VAE of such models overflows float16"),
    "gradient-first": (-STRONG, "an encoder that overflows shows in the loss first"),
    "loss-scale-collapse": (HINT, "a forward that overflows does so at every loss scale"),
    "finite-loss": (-STRONG, "an encoder that overflows shows in the loss"),
    "probability-tensor": (STRONG, "an encoder that overflows gives NaN logits"),
}


def foresee(
    precision: Precision, model: Model | None = None, training: Training | None = None, weights: Weights | None = None
) -> Iterator[Finding | Needs]:
    if precision.compute != "float16":
        return
    yield from needs(weights=weights)
    if weights is None or not weights.reaches:
        yield from _by_name(precision, model, training)
        return
    beyond = [reach for reach in weights.reaches if reach.value > MAX_FLOAT16]
    beyond = [reach for reach in beyond if not _in_float32(reach.tensor, precision)]
    if beyond:
        worst = max(beyond, key=lambda reach: reach.value)
        yield Finding(
            severity="warning",  # whether the images of this run come near is for the run to show
            message=f"row {worst.row} behind a layer norm can give {worst.value:.3g} in float16, whose largest number "
            f"is {MAX_FLOAT16:.0f}: images that drive it become inf, while text and other images are fine",
            where=Where(file=worst.file, tensor=worst.tensor),
            evidence={
                "reach": worst.value, "row": worst.row, "layers": len(beyond), "max_float16": MAX_FLOAT16,
            },
        )  # fmt: skip


def _by_name(precision: Precision, model: Model | None, training: Training | None) -> Iterator[Finding | Needs]:
    name = " ".join(v.lower() for v in (model and model.family, training and training.model_name) if v)
    if precision.float32_modules:
        return
    if not SEES.search(name):
        yield from needs(model=model, training=training)
        return
    yield Finding(
        severity="info",  # many encoders fit float16; the first batch with an image tells
        message=f"the run computes in float16 and {name.split()[-1]} has an encoder of images, trained with a wider "
        "range: try one batch with an image first",
        where=Where.said(precision.source),
        evidence={"compute": "float16", "model": name},
    )


def weigh(origin: Origin) -> Iterator[Evidence]:
    tower = tower_of(origin.module or "")
    if tower is None:
        yield evidence(
            "module of the origin", -DECISIVE, "the first bad value does not arise in an encoder of images or sound"
        )
        return
    if origin.dtype != "float16" or origin.phase in ("parameter", "input"):
        text = f"what fails in {tower} is no float16 overflow ({origin.phase}, {origin.dtype})"
        yield evidence("origin", -DECISIVE, text)
        return
    text = f"the first bad value arises in {tower}, which only images or sound pass through"
    yield evidence("module of the origin", DECISIVE, text)
    if origin.phase == "forward":
        text = f"{origin.op} leaves the range of float16 there, in the forward"
        yield evidence("origin", DECISIVE, text)


def _in_float32(tensor: str, precision: Precision) -> bool:
    return any(f".{kept}." in f".{tensor}" for kept in precision.float32_modules or ())
