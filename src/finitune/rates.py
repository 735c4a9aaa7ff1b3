"""Learning rates: from where a model is at risk, by its optimizer and by what is trained.

Adam moves every weight by about the rate, so the rate over the size of weights (0.02 in most transformers) is the
relative change per step, 5 % at 1e-3. Recipes of released models use 5e-6 to 5e-5 for all weights. Adapters start from
B = 0 and carry a scale, so theirs use about ten times as much (1e-4 to 5e-4, small models up to 2e-3); 5e-3 is the
confirmed failure of ssbuild/chatglm_finetuning#28. SGD moves the weights by the rate times the gradient, whose norm
clipping bounds: recurrent language models were trained at 30 with norms up to 0.25 (Merity et al. 2017), a step of 7.5.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

from finitune.facts import Adapter, Optimizer, Training
from finitune.series import Series

ADAM = re.compile(
    r"^(paged_?|fused|onebit|zeroone|deepspeedcpu)?_?adamw?"
    r"(_?(8|32)bit|_(torch|hf|apex|bnb|8bit|4bit|fused|npu|xla|anyprecision)\w*)?$"
)
SGD = ("sgd", "momentum", "nesterov")
SGD_LENGTH = 10.0
"""A step of SGD that is longer than any recipe's."""
OWN_LOOPS = ("torch", "lightning")
"""Frameworks that choose no optimizer by themselves."""
LIKE_LORA = (None, "none", "lora", "dora", "adalora", "qlora")
"""Other adapters (soft prompts, IA3, VeRA...) train few numbers of another size, at rates up to 0.1."""
USUAL = 5e-4
"""Below it the rate is one of usual recipes, whatever is trained."""
TINY = 1e-6
"""Below it no number of steps of a fine-tune moves weights of 0.02 far enough to break a run."""
LARGE, REPLACED = 0.05, 0.5
"""Of the weights, per update: what Adam does at a rate of 1e-3, and of 1e-2, to weights of 0.02 (`finitune.rates`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Risk:
    """From `warning` on (itself only where `included`) `what` is at risk, above `error` it fails."""

    what: str
    warning: float
    error: float
    included: bool = True
    unwarmed: float | None = None
    """From here on it wants a warm-up; None where that is not known."""

    def at(self, lr: float) -> bool:
        return lr > self.warning or (self.included and lr == self.warning)


FULL = Risk(what="full fine-tuning", warning=1e-3, error=1e-2, included=False, unwarmed=1e-4)  # small models use 1e-3
LORA = Risk(what="LoRA", warning=5e-3, error=5e-2, unwarmed=1e-3)
ANY = Risk(what="any fine-tuning, LoRA included", warning=5e-3, error=5e-2, unwarmed=1e-3)


def risk_of(optimizer: Optimizer, adapter: Adapter | None = None, training: Training | None = None) -> Risk | None:
    """None for optimizers with scales of their own (Adafactor, Lion, Prodigy, GaLore...) and for other adapters."""
    if adapter is not None and adapter.kind not in LIKE_LORA:
        return None
    name = (optimizer.name or "adamw").lower()
    if name in SGD:
        clip = optimizer.clip or 1.0  # a gradient of norm 1 where nothing clips
        return Risk(what=f"SGD with gradients of norm {clip:g}", warning=SGD_LENGTH / clip, error=SGD_LENGTH / clip)
    if not ADAM.match(name):
        return None
    risk = FULL if optimizer.lora is False else LORA if optimizer.lora else ANY
    if optimizer.name is None and training is not None and training.framework in OWN_LOOPS:  # it may be SGD
        return dataclasses.replace(risk, error=SGD_LENGTH)
    return risk


def measured_update(lr: Series | None, *ratios: Series | None) -> float | None:
    """The smallest update that was measured, relative to the weights (those that begin at zero move far at first), at
    the rate of now: by the first of `ratios` that has one.
    """
    for series in ratios:
        known = [(step, ratio) for step, ratio in series.pairs() if ratio > 0] if series is not None else []
        if known:
            rates = [lr.last / lr.at(step) if lr is not None and lr.at(step) > 0 else 1.0 for step, _ in known]
            return min(ratio * rate for (_, ratio), rate in zip(known, rates, strict=True))
    return None
