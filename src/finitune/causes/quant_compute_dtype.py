"""The dtype around quantised weights is not the one that was asked for: a silent float16.

## What happens

Quantised weights are unpacked for every product, and a setting of its own says in which dtype. Where nobody says it,
a default does: Ludwig computes 4-bit products in float16, and 8-bit loading casts everything that is not quantised
(norms, embeddings, head) to float16 unless a dtype is given. A model that was pre-trained in bfloat16 then runs in
float16 although the run says bfloat16, or says nothing: it overflows, or it answers with nothing.

## How to tell

`load_in_4bit` or `load_in_8bit` without a compute dtype; a census of the dtypes after loading shows float16 norms.
bfloat16 in the trainer's settings changes nothing. The unquantised model is healthy.

## How to prove

Load once more with the compute dtype set to bfloat16 or float32 and run the same batch: it is finite.

## What to do

Say the dtype (set-compute-dtype): bfloat16 where the card has it, else float32.

## What does not help

`bf16: true` alone: it rules autocast, not the unpacking. A lower learning rate; batch size 1, which only avoids the
padding that overflows first.

## References

bitsandbytes-foundation/bitsandbytes#1572 (maintainer: the default is float16), ludwig-ai/ludwig#3950 (NaN from batch
size 2 on), artidoro/qlora#24, huggingface/text-generation-inference#1554.
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.chapter import Needs, needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Hardware, Model, Precision, Quantization
from finitune.finding import Evidence, Finding, Origin, Where

remedies = ["set-compute-dtype"]
public_incidents = 5
foresees = "quantised dtype"

tells: Tells = {
    "dtype-not-given": (STRONG, "by default quantised layers compute in float16"),
    "quantised": (STRONG, "quantised layers compute in a dtype of their own"),
    "family-overflows": (HINT, "float16 is too narrow for this family"),
    "float32-works": (HINT, "another dtype of compute cures it"),
    "nonfinite-loss": (HINT, "a forward that overflows shows in the loss"),
    "probability-tensor": (HINT, "a forward that overflows gives NaN logits"),
    "nonfinite-parameter": (STRONG, "Ludwig computes around 4-bit weights in float16"),
    "no-word-of-quantisation": (-STRONG, "there is no quantised layer"),
    "computes-bfloat16": (-STRONG, "the dtype of compute was given"),
    "computes-float32": (-STRONG, "the dtype of compute was given"),
}


def foresee(
    quantization: Quantization,
    model: Model | None = None,
    precision: Precision | None = None,
    hardware: Hardware | None = None,
) -> Iterator[Finding | Needs]:
    if quantization.bits == 4 and quantization.compute_dtype == "bfloat16":
        yield from _emulated(quantization, hardware)
    if not _float16(quantization, precision):
        return
    wide = _wanted_wide(model, precision)
    if wide is None and not quantization.compute_dtype_is_default:
        yield from needs(model=model, precision=precision)
        return  # float16, said in so many words, and nothing speaks against it
    default = "by default " if quantization.compute_dtype_is_default else ""
    yield Finding(
        # Unknown weights may be float16 ones, for which the default is right. In 8 bit what lies far out is kept apart,
        # and most bfloat16 models are healthy that way.
        severity="info" if wide is None or quantization.bits == 8 else "warning",
        message=f"{quantization.bits or 4}-bit weights are {default}computed in float16"
        + (f", although {wide}" if wide else "; a model pre-trained in bfloat16 may overflow there"),
        where=Where.said(quantization.source),
        evidence={
            "bits": quantization.bits,
            "compute_dtype": "float16",
            "is_default": quantization.compute_dtype_is_default,
            **({"stored": model.dtype} if model else {}),
        },
    )


def _emulated(quantization: Quantization, hardware: Hardware | None) -> Iterator[Finding | Needs]:
    if hardware is None:
        yield from needs(hardware=hardware)
    elif not hardware.bfloat16 and not quantization.compute_dtype_is_default:  # a default follows the run
        yield Finding(
            severity="warning",
            message=f"4-bit weights are computed in bfloat16, and {hardware.name} has no units for it: it is refused, "
            "or emulated through float32 at a fraction of the speed",
            where=Where.said(quantization.source),
            evidence={"bits": 4, "compute_dtype": "bfloat16", "is_default": False, "hardware": hardware.name},
        )


def weigh(quantization: Quantization, origin: Origin, precision: Precision | None = None) -> Iterator[Evidence]:
    if not _float16(quantization, precision):
        if quantization.compute_dtype is None:
            return
        yield evidence("quantised dtype", -DECISIVE, f"quantised products are computed in {quantization.compute_dtype}")
        return
    yield evidence("quantised dtype", STRONG, "quantised products are computed in float16")
    if origin.dtype != "float16":
        yield evidence("origin", -DECISIVE, f"but the first bad value arises in {origin.dtype}")
    elif precision is not None and precision.compute == "bfloat16":
        yield evidence(
            "origin", DECISIVE, "the first bad value arises in float16, in a run that was to compute in bfloat16"
        )


def _float16(quantization: Quantization, precision: Precision | None) -> bool:
    """8-bit loading takes float16 where neither a compute dtype nor a load dtype is given."""
    loaded = precision.parameters if precision else None
    silent = quantization.bits == 8 and quantization.kind in (None, "int8") and loaded is None
    return quantization.compute_dtype == "float16" or (quantization.compute_dtype is None and silent)


def _wanted_wide(model: Model | None, precision: Precision | None) -> str | None:
    if precision is not None and precision.compute == "bfloat16":
        return "the run asks for bfloat16"
    if model is not None and model.dtype == "bfloat16":
        return "the weights were stored in bfloat16, whose range is wider"
    return None
