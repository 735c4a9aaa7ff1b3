"""A release of the fused attention kernel is wrong for this model or this card.

## What happens

Fused kernels support what they were written for. FlashAttention 2.6.0 and 2.6.1 cap attention scores (Gemma 2) in the
forward and not in the backward: every gradient is NaN. Before 2.6 the cap is left out. Before 2.1 the backward of
causal attention with more queries than keys gives NaN. xformers 0.0.16 does on cards of compute capability 8.6.

## How to tell

The version of the kernel, the model, the card. The first bad value is the gradient of the query.

## How to prove

Run the captured step with eager attention: it becomes finite. With the same kernel on copies it does not.

## What to do

Install flash-attn 2.6.3 or later (upgrade-package), or use another kernel (math-attention): SDPA or eager.

## What does not help

A lower learning rate, bfloat16 for float16: the kernel is wrong in both.

## References

Dao-AILab/flash-attention#1065 (the author: no backward for the cap yet), huggingface/transformers#31997 (gradient norm
NaN, then loss 0) and #31887, axolotl-ai-cloud/axolotl#1781 (2.6.2 has it); Dao-AILab/flash-attention#443 (varlen);
kohya-ss/sd-scripts#135 and the documentation of diffusers (xformers 0.0.16).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from finitune.chapter import Experiment, Needs, needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Attention, Hardware, Model, Training
from finitune.finding import Evidence, Finding, Origin, Remedy, Severity, Where

GEMMA2 = re.compile(r"gemma[-_]?2\b|^gemma2")
CAPABILITY_8_6 = re.compile(r"\b(A10G?|A16|A40|RTX A\d000|RTX 30\d0)\b")

AMPERE = ("flash_attention_2", "flash_attention_3")
"""Kernels that were never written for cards before compute capability 8.0, which are those without bfloat16."""

FUSED, TORCHS = ("flash", "xformers", "efficient_attention"), ("eager", "sdpa")
experiments = [
    Experiment(arm="attention-math", expect="finite"),
    Experiment(arm="attention-copies", expect="non-finite", placebo=True),
]
remedies = ["upgrade-package", "math-attention", "fused-attention"]
public_incidents = 7
frame = "fused attention"
foresees = "fused attention"

tells: Tells = {
    "flash": (STRONG, "a fused kernel computes attention"),
    "plain-attention-works": (STRONG, "plain attention is healthy"),
    "query-gradient-only": (STRONG, "the backward of fused attention fails first in the query"),
    "flash-off": (-DECISIVE, "fused attention is switched off"),
    "queries-beyond-keys": (STRONG, "causal masks with more queries than keys were wrong in some releases"),
    "kernel-level": (HINT, "the kernel is reported by itself"),
    "less-tested-device": (-HINT, "on such a device any kernel is suspect"),
    "other-card-works": (HINT, "kernels differ between architectures"),
    "capped-scores": (STRONG, "capping of scores came late to fused attention"),
    "hidden-loss": (HINT, "after the bad update the loss is NaN, which is printed as 0"),
    "sentinel-norm": (HINT, "an update was taken although the gradient norm was not finite"),
    "gradient-first": (STRONG, "the forward was finite, the backward was not"),
    "computes-bfloat16": (HINT, "fused attention runs in 16 bits"),
    "computes-float32": (-STRONG, "fused attention runs in 16 bits"),
    "first-step-lost": (-HINT, "most defects of it are in the backward"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Defect:
    package: str
    affected: SpecifierSet
    fixed_in: str
    severity: Severity
    what: str


NO_BACKWARD = _Defect(
    package="flash-attn", affected=SpecifierSet(">=2.6.0,<2.6.2"), fixed_in="2.6.2", severity="error",
    what="caps the scores of Gemma 2 in the forward only: every gradient is NaN",
)  # fmt: skip
NO_CAP = _Defect(
    package="flash-attn", affected=SpecifierSet("<2.6.0"), fixed_in="2.6.3", severity="warning",
    what="does not cap the scores of Gemma 2, so another model is trained",
)  # fmt: skip
VARLEN = _Defect(
    package="flash-attn", affected=SpecifierSet("<2.1"), fixed_in="2.1.0", severity="info",
    what="gives NaN gradients for causal attention with more queries than keys",
)  # fmt: skip
XFORMERS = _Defect(
    package="xformers", affected=SpecifierSet("==0.0.16"), fixed_in="0.0.17", severity="warning",
    what="gives NaN in training on cards of compute capability 8.6",
)  # fmt: skip


def foresee(
    attention: Attention,
    versions: Mapping[str, str] | None = None,
    model: Model | None = None,
    training: Training | None = None,
    hardware: Hardware | None = None,
) -> Iterator[Finding | Needs]:
    kernel = attention.implementation
    if hardware is not None and not hardware.bfloat16 and kernel in AMPERE:
        yield _refused(kernel, hardware, attention)
        return
    if kernel in AMPERE:
        yield from needs(hardware=hardware)
    name = " ".join(str(v).lower() for v in (model and model.family, training and training.model_name) if v)
    capped = bool(GEMMA2.search(name))
    if kernel == "flash_attention_2" and not capped:
        yield from needs(model=model, training=training)
    for defect in _defects(kernel, capped=capped, hardware=hardware):
        version = (versions or {}).get(defect.package)
        if version is None:
            yield Needs(f"versions.{defect.package}")
            return
        if not defect.affected.contains(version, prereleases=True):
            continue
        yield Finding(
            severity=defect.severity,
            message=f"{defect.package} {version} {defect.what}; fixed in {defect.fixed_in}",
            where=Where.said(attention.source),
            evidence={
                "package": defect.package, "version": version, "affected": str(defect.affected),
                "fixed_in": defect.fixed_in, "attention": kernel,
            },
        )  # fmt: skip


def _refused(kernel: str, hardware: Hardware, attention: Attention) -> Finding:
    return Finding(
        severity="error",
        message=f"FlashAttention-2 needs compute capability 8.0 (A100, RTX 30 and later) and refuses a {hardware.name}",
        where=Where.said(attention.source),
        evidence={"attention": kernel, "hardware": hardware.name},
        remedy=Remedy(name="fused-attention", patch={"attn_implementation": "sdpa"}),
    )


def weigh(origin: Origin, attention: Attention | None = None) -> Iterator[Evidence]:
    other = attention.implementation if attention is not None and attention.implementation not in TORCHS else None
    within = other is not None and "att" in (origin.module or "").rpartition(".")[2].lower()
    if origin.phase not in ("forward", "backward") or not (within or any(name in origin.op for name in FUSED)):
        yield evidence("origin", -DECISIVE, f"the first bad value is in {origin.op}, not in a fused attention kernel")
        return
    text = f"{other or origin.op} makes the first bad value, in the {origin.phase}"
    yield evidence("origin", DECISIVE if origin.phase == "backward" else STRONG, text)


def _defects(kernel: str, *, capped: bool, hardware: Hardware | None) -> Iterator[_Defect]:
    if kernel == "flash_attention_2":
        yield from (NO_BACKWARD, NO_CAP) if capped else (VARLEN,)
    if kernel == "xformers" and (hardware is None or CAPABILITY_8_6.search(hardware.name)):
        yield XFORMERS
