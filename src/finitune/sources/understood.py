"""One line for each file that was read: what it was taken for, and the few settings that matter most."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from finitune.facts import Facts, Training
from finitune.sources.configs.format import Asked
from finitune.sources.configs.runs import Named
from finitune.sources.text import short

DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}


def line_of(
    one: Named, facts: Facts, *, by: str | None = None, card: Asked | None = None, over: Iterable[str] = ()
) -> str:
    """`train.py as transformers Trainer: fp16, lr 2e-4, no clipping; 3 keys not used`. `over`: what is laid over which
    other file.
    """
    kind = one.format
    title = kind.title(one.data) if kind.title else kind.name.replace("_", " ")
    cards = [] if card is None else [f"{f'{card.count} x ' if card.count else ''}{card.name} (line {card.line})"]
    said = ", ".join([*cards, *_settings(facts), *over])
    unused = kind.unused(one.data) if kind.unused else 0
    rest = f"; {unused} {'key' if unused == 1 else 'keys'} not used" if unused else ""
    by = f", {by}," if by else ""
    return f"{one.file}{by} as {title}: {said or 'no setting that is looked at here'}{rest}"


def says(facts: Facts) -> bool:
    """Whether a file said anything that is looked at here."""
    groups = {f.name: getattr(facts, f.name) for f in dataclasses.fields(facts)}
    said = [group for name, group in groups.items() if group and name not in ("disagreements", "unknown_keys")]
    return any(
        not isinstance(one, Training) or one != Training(framework=one.framework, source=one.source) for one in said
    )


def _settings(facts: Facts) -> Iterator[str]:
    precision, optimizer, adapter = facts.precision, facts.optimizer, facts.adapter
    if facts.training and facts.training.model_name:
        yield short(facts.training.model_name)
    if facts.quantization and facts.quantization.bits:
        yield f"{facts.quantization.bits}-bit"
    if precision and precision.compute:
        yield DTYPES.get(precision.compute, precision.compute)
    if precision and precision.parameters and precision.parameters != precision.compute:
        yield f"weights in {DTYPES.get(precision.parameters, precision.parameters)}"
    if adapter and adapter.kind not in (None, "none"):
        yield f"LoRA of rank {adapter.rank}" if adapter.rank else "LoRA"
    if optimizer and optimizer.lr is not None:
        yield f"lr {number(optimizer.lr)}"
    if optimizer and optimizer.clip is not None:
        yield f"clipping at {number(optimizer.clip)}" if optimizer.clip > 0 else "no clipping"
    if facts.parallel and facts.parallel.zero_stage is not None:
        yield f"ZeRO-{facts.parallel.zero_stage}"


def number(value: float) -> str:
    """As people write it: 2e-4."""
    return f"{value:g}" if abs(value) >= 1e-2 or not value else _power(value)


def _power(value: float) -> str:
    mantissa, _, power = f"{value:.6e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}"
