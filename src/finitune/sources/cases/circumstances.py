"""Facts and printed numbers of a run -> named circumstances, the ones that make a cause possible or rule it out.

They stand beside what people say (`statements`), under names of the same kind, so that a chapter needs one table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from finitune.facts import Facts
from finitune.finding import number
from finitune.series import WORSE_THAN_CHANCE

OVERFLOWING = re.compile(r"t5|gemma|qwen-?2|qwen-?[13]|qwen|baichuan|glm|phi-?\d|falcon|bloom|minicpm", re.IGNORECASE)
"""Families with public reports of activations beyond 65504."""
EXPERTS = re.compile(
    r"\bmoe|mixtral|mixture|experts?\b|-a\d+b|deepseek-?v[23]|deepseek-?r1|olmoe|grok|dbrx|gpt-?oss", re.IGNORECASE
)
SEES = re.compile(
    r"\bvl\b|-vl|vision|llava|minicpm-v|-4-e\db|paligemma|idefics|pixtral|internvl|blip|mllama", re.IGNORECASE
)
DENOISES = re.compile(
    r"\bsd\d?\b|sd ?[123]|sdxl|stable.?diffusion|diffusers|flux|dreambooth|controlnet|kohya|unet", re.IGNORECASE
)
NO_BFLOAT16 = re.compile(r"v100|\bt4\b|2080|1080|turing|p100|\btitan\b|quadro rtx|gtx", re.IGNORECASE)
NEW_CARD = re.compile(r"\bh[12]00|h20\b|hopper|\bg?b[23]00|blackwell|sm_?(90|100|120)|rtx 50\d0", re.IGNORECASE)
LESS_TESTED = re.compile(
    r"\bmps\b|apple|\bm[1-5] (pro|max|ultra)|\brocm|\bamd\b|gfx|radeon|strix|mi\d{2,3}|\bxpu|arc a\d|\bnpu|ascend|"
    r"gaudi|directml|windows|\bhip\b|\btpu|\bxla\b",
    re.IGNORECASE,
)
KERNEL_LEVEL = re.compile(
    r"^\s*(pytorch(?!-| lightning| amp| adam)|torch(?!tune|titan)|triton|flash|liger|flashinfer|"
    r"transformer.?engine|cutlass|xformers)",
    re.IGNORECASE,
)
"""The report is about a library by itself, not about a run."""
CLIMBED, TINY_RATE = 1.6, 1e-6

_LOSS = re.compile(r"(?<!eval_)\bloss['\"]?\s{0,9}[:=(]?\s{0,9}(nan|inf|\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE)
_NORM = re.compile(r"grad_?norm['\"]?\s{0,9}[:=]?\s{0,9}(?:is )?(nan|inf|\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE)
_EVAL = re.compile(r"eval_loss['\"]?\s{0,9}[:=]?\s{0,9}(nan|inf|\d+(?:\.\d+)?)", re.IGNORECASE)
_RATE = re.compile(r"(?:learning_rate|\blr)['\"]?\s{0,9}[:=]\s{0,9}(\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE)
SENTINELS = (1.0, 1.4142, 1.7320)
"""DeepSpeed prints the root of the number of parameter groups where a norm was not finite."""

KNOWN = {
    "no-bfloat16-card",
    "computes-float16", "computes-bfloat16", "computes-float32", "holds-float16", "holds-bfloat16", "holds-float32",
    "zero-0", "zero-1", "zero-2", "zero-3", "overlap-true", "overlap-false", "accumulates", "adapter", "deepspeed",
    "denoises", "eval-loss-nan", "experts", "family-overflows", "gradient-first", "first-loss-huge",
    "gradient-nan", "int8", "kernel-level", "less-tested-device", "climbed", "loss-not-finite",
    "hidden-loss", "zero-loss-zero-gradient", "new-card", "no-deepspeed", "no-word-of-deepspeed",
    "no-word-of-quantisation", "overlap-not-asked", "nodes", "pretrains",
    "quantisation", "sees", "sentinel-norm", "tiny-rate", "weights-even",
}  # fmt: skip
"""Every circumstance that a chapter may name."""


def read(facts: Facts, case: Mapping[str, Any]) -> dict[str, str]:
    """Circumstance -> where it shows."""
    return of_facts(facts) | dict(_of_names(case)) | dict(_of_log(_lines(case)))


def of_facts(facts: Facts) -> dict[str, str]:
    """Circumstances that follow from facts alone, and where they show."""
    return dict(_of_facts(facts))


def _lines(case: Mapping[str, Any]) -> Sequence[str]:
    log = case.get("log")
    return [str(line)[:4000] for line in cast("list[Any]", log)] if isinstance(log, list) else []


def _of_facts(facts: Facts) -> Iterator[tuple[str, str]]:
    precision, parallel, optimizer = facts.precision, facts.parallel, facts.optimizer
    compute = precision.compute if precision else None
    held = precision.parameters if precision else None
    if compute or held:
        yield f"computes-{compute or held}", f"compute in {compute or held}"
    if held:
        yield f"holds-{held}", f"weights are held in {held}"
    if parallel and parallel.kind == "deepspeed":
        yield "deepspeed", "DeepSpeed"
    elif parallel and parallel.kind is not None:
        yield "no-deepspeed", "gradients do not pass through DeepSpeed"
    if parallel and parallel.zero_stage is not None:
        yield f"zero-{parallel.zero_stage}", f"ZeRO stage {parallel.zero_stage}"
    if parallel and parallel.overlap_comm is not None:
        yield f"overlap-{str(parallel.overlap_comm).lower()}", f"overlap_comm {parallel.overlap_comm}"
    if parallel and (parallel.nodes or 1) > 1:
        yield "nodes", f"{parallel.nodes} nodes"
    if optimizer and optimizer.lr is not None and optimizer.lr < TINY_RATE:
        yield "tiny-rate", f"learning rate {optimizer.lr:g}"
    if optimizer and optimizer.lora:
        yield "adapter", "LoRA"
    if optimizer and (optimizer.accumulation or 1) > 1:
        yield "accumulates", f"{optimizer.accumulation} micro-steps"
    if facts.hardware and LESS_TESTED.search(facts.hardware.name):
        yield "less-tested-device", facts.hardware.name
    if facts.hardware and not facts.hardware.bfloat16:
        yield "no-bfloat16-card", facts.hardware.name
    if facts.weights and facts.weights.tensors and not any(t.outlying or t.overflow for t in facts.weights.tensors):
        yield "weights-even", "no weight stands out of its tensor"
    if precision and precision.full_eval == "float16":
        yield "half-eval", "evaluation casts the whole model to float16"
    if facts.model and ((facts.model.experts or 0) > 1 or EXPERTS.search((facts.model.family or "").replace("_", "-"))):
        yield "experts", f"{facts.model.experts or 'several'} experts"
    if facts.model and facts.model.family and OVERFLOWING.search(facts.model.family):
        yield "family-overflows", facts.model.family
    if facts.quantization and facts.quantization.bits == 8:
        yield "int8", "weights loaded in 8 bits"
    if facts.quantization and facts.quantization.bits:
        yield "quantisation", f"{facts.quantization.bits}-bit weights"


def _of_names(case: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    config = case.get("config")
    words = {key: str(case.get(key) or "") for key in ("framework", "model", "hardware", "title")}
    settings = str(cast("dict[str, Any]", config)) if isinstance(config, Mapping) else ""
    named = f"{words['model']} {words['framework']} {words['title']}"
    device = f"{words['hardware']} {words['framework']}"
    tables = (
        ("family-overflows", OVERFLOWING, named), ("experts", EXPERTS, f"{named} {settings}"), ("sees", SEES, named),
        ("denoises", DENOISES, named), ("no-bfloat16-card", NO_BFLOAT16, device), ("new-card", NEW_CARD, device),
        ("less-tested-device", LESS_TESTED, f"{device} {settings}"), ("kernel-level", KERNEL_LEVEL, words["framework"]),
    )  # fmt: skip
    for slug, pattern, text in tables:
        if found := pattern.search(text):
            yield slug, found[0].strip()
    if re.search(r"megatron|nemo|fast-llm|torchtitan|lingua", named, re.IGNORECASE):
        yield "pretrains", words["framework"]


def _of_log(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    losses = [
        (value, line) for line in lines for found in _LOSS.findall(line) if (value := number_of(found)) is not None
    ]
    norms = [value for line in lines for found in _NORM.findall(line) if (value := number_of(found)) is not None]
    finite = [value for value, _ in losses if math.isfinite(value)]
    if any(math.isnan(value) for value, _ in losses):
        yield "loss-not-finite", "the loss is nan"
    if any(not math.isfinite(value) for value in norms):
        yield "gradient-nan", "the gradient norm is not finite"
        if any(value == 0 for value in finite):
            yield "hidden-loss", "loss 0 with a gradient norm that is not finite"
        if any(_finite_beside_nan(line) for line in lines):
            yield "gradient-first", "a finite loss with a gradient norm that is not finite"
    elif norms and any(value == 0 for value in finite) and 0.0 in norms:
        yield "zero-loss-zero-gradient", "loss 0 with gradient norm 0"
    if norms and 0.0 in finite and any(abs(value - one) < 1e-3 for value in norms for one in SENTINELS):
        yield "sentinel-norm", "gradient norm 1.0, 1.414 or 1.732 with loss 0: a norm that was not finite"
    if any(
        not math.isfinite(value) for line in lines for f in _EVAL.findall(line) if (value := number_of(f)) is not None
    ):
        yield "eval-loss-nan", "eval_loss is nan"
    if finite and finite[0] > WORSE_THAN_CHANCE:
        yield "first-loss-huge", f"the first loss that is shown is {finite[0]:g}"
    positive = [value for value in finite if value > 0]
    if (
        len(positive) > 2
        and max(positive[1:]) > CLIMBED * min(positive[:-1])
        and positive[-1] > CLIMBED * min(positive)
    ):
        yield "climbed", f"the loss climbs from {min(positive):.3g} to {positive[-1]:.3g}"
    rates = [float(rate) for line in lines for rate in _RATE.findall(line)]
    if rates and max(rates) < TINY_RATE:
        yield "tiny-rate", f"learning rate {max(rates):g}"


def _finite_beside_nan(line: str) -> bool:
    """One row tells a loss that is finite, and a gradient norm that is not."""
    losses, norms = ([number_of(text) for text in one.findall(line)] for one in (_LOSS, _NORM))
    sound = any(value is not None and math.isfinite(value) and value > 0 for value in losses)
    return sound and any(value is not None and not math.isfinite(value) for value in norms)


def number_of(text: str) -> float | None:
    """`nan`, `inf` or a number that was printed."""
    return number(text.lower()) if text[0].isalpha() else float(text)
