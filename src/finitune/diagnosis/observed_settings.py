"""Facts and names of a run -> observations: the settings that make a cause possible or rule it out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from finitune.facts import Facts
from finitune.observations import Observation
from finitune.rates import TINY

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
PRETRAINS = re.compile(r"megatron|nemo|fast-llm|torchtitan|lingua", re.IGNORECASE)


def of_facts(facts: Facts) -> dict[str, Observation]:
    """What follows from facts alone."""
    return {name: Observation(name=name, text=text) for name, text in _of_facts(facts)}


def of_names(case: Mapping[str, Any]) -> dict[str, Observation]:
    """What a case names: its framework, model and hardware."""
    config = case.get("config")
    framework, model, hardware, title = (
        str(case.get(key) or "") for key in ("framework", "model", "hardware", "title")
    )
    settings = str(cast("dict[str, Any]", config)) if isinstance(config, Mapping) else ""
    named, device = f"{model} {framework} {title}", f"{hardware} {framework}"
    tables = (
        ("family-overflows", OVERFLOWING, named), ("experts", EXPERTS, f"{named} {settings}"), ("images", SEES, named),
        ("denoises", DENOISES, named), ("new-card", NEW_CARD, device), ("pretrains", PRETRAINS, named),
        ("less-tested-device", LESS_TESTED, f"{device} {settings}"), ("kernel-level", KERNEL_LEVEL, framework),
    )  # fmt: skip
    return {
        name: Observation(name=name, text=found[0].strip(), place="the case")
        for name, pattern, text in tables
        if (found := pattern.search(text))
    }


def _of_facts(facts: Facts) -> Iterator[tuple[str, str]]:
    precision, parallel, optimizer = facts.precision, facts.parallel, facts.optimizer
    compute = precision.compute if precision else None
    held = precision.parameters if precision else None
    if compute or held:
        yield f"computes-{compute or held}", f"compute in {compute or held}"
    if held in ("float16", "bfloat16"):
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
    if optimizer and optimizer.lr is not None and optimizer.lr < TINY:
        yield "tiny-learning-rate", f"learning rate {optimizer.lr:g}"
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
        yield "int8-weights", "weights are loaded in 8 bits"
    if facts.quantization and facts.quantization.bits:
        yield "quantised", f"weights are loaded in {facts.quantization.bits} bits"
