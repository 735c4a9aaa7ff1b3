"""Several configurations -> one picture, and where they contradict each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from finitune.facts import Disagreement, Facts, Precision, UnknownKey
from finitune.finding import NotChecked
from finitune.sources.result import Supervision

SPOKESMEN = {
    "precision": "compute", "optimizer": "lr", "parallel": "zero_stage", "quantization": "compute_dtype",
    "adapter": "kind", "batching": "max_length", "training": "framework",
}  # fmt: skip
"""Groups that are joined field by field, and the field whose source becomes that of the group."""

COMPARED = {
    "precision": ("compute",),
    "optimizer": ("lr", "eps", "betas", "weight_decay", "warmup_steps", "clip", "batch", "accumulation"),
    "parallel": ("zero_stage", "offload_optimizer", "offload_parameters", "overlap_comm"),
    "quantization": ("bits", "compute_dtype"),
    "adapter": ("kind", "rank", "alpha"),
    "attention": ("implementation",),
    "batching": ("max_length", "packing", "padding_side"),
}
"""Fields of which one run has one value. Names of optimizers and schedules are left out: each format has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configured:
    """One configuration as it was read."""

    precedence: int = 0
    facts: Facts = field(default_factory=Facts)
    supervision: Supervision = field(default_factory=Supervision)
    data: Sequence[tuple[str, str]] = ()
    """Data that is named, each with the file that names it."""
    unknown_keys: Sequence[UnknownKey] = ()
    not_checked: Sequence[NotChecked] = ()


def joined(configured: Sequence[Configured]) -> Configured:
    """The configurations joined setting by setting; the higher precedence wins, then the earlier one."""
    ranked = _without_defaults(sorted(configured, key=lambda one: -one.precedence))
    facts, supervision = Facts(), Supervision()
    for one in ranked:
        groups = {name: _filled(getattr(facts, name), getattr(one.facts, name), key) for name, key in SPOKESMEN.items()}
        facts = Facts(**groups).over(facts.over(one.facts))
        supervision = supervision.over(one.supervision)
    unknown = [key for one in configured for key in one.unknown_keys]
    within = [found for one in ranked for found in one.facts.disagreements or ()]
    between = disagreements([one.facts for one in ranked])
    facts = dataclasses.replace(
        facts,
        precision=_consistent(facts.precision),
        disagreements=[*within, *between, *_batches(facts)] if configured else None,
        unknown_keys=unknown if configured else None,
    )
    not_checked = [entry for one in configured for entry in one.not_checked]
    data = [named for one in ranked for named in one.data]
    return Configured(facts=facts, supervision=supervision, data=data, not_checked=not_checked)


def _without_defaults(ranked: Sequence[Configured]) -> Sequence[Configured]:
    """Where somebody says what to compute in, the dtype of loading does not say it a second time."""
    found = [one.facts.precision for one in ranked]
    if not any(p is not None and p.compute is not None and not _of_loading(p) for p in found):
        return ranked
    none: Mapping[str, None] = dict.fromkeys(("compute", "scaler", "requested_by"))
    kept = [dataclasses.replace(p, **none) if p is not None and _of_loading(p) else p for p in found]
    return [
        dataclasses.replace(one, facts=dataclasses.replace(one.facts, precision=precision))
        for one, precision in zip(ranked, kept, strict=True)
    ]


def _of_loading(precision: Precision) -> bool:
    return precision.parameters is not None and (precision.source or "").endswith(": dtype")


def disagreements(ranked: Sequence[Facts]) -> Iterator[Disagreement]:
    """One for each compared field with more than one value; the value that counts first."""
    for name, keys in COMPARED.items():
        groups = [group for facts in ranked if (group := getattr(facts, name)) is not None]
        for key in keys:
            said = [(value, str(group.source)) for group in groups if (value := _said(group, key)) is not None]
            different = [said[0], *(one for one in said if one[0] != said[0][0])] if said else []
            if len(different) > 1:
                yield Disagreement(
                    key=f"{name}.{key}",
                    values=[_spelt(value) for value, _ in different],
                    sources=[source for _, source in different],
                )


def _batches(facts: Facts) -> Iterator[Disagreement]:
    """DeepSpeed refuses a `train_batch_size` that is not micro-batch times accumulation times devices."""
    optimizer, parallel = facts.optimizer, facts.parallel
    world = parallel.world if parallel and parallel.nodes in (None, 1) else None  # of several nodes it is one's share
    if optimizer is None or not (optimizer.global_batch and optimizer.batch and optimizer.accumulation):
        return
    product = optimizer.batch * optimizer.accumulation * (world or 1)
    if product != optimizer.global_batch and (world or optimizer.global_batch % product):
        factors = f"{optimizer.batch} x {optimizer.accumulation} x {world or 'the devices'}"
        yield Disagreement(
            key="optimizer.global_batch",
            values=[str(optimizer.global_batch), f"{factors} = {product}" if world else factors],
            sources=[str(optimizer.source), str(optimizer.source)],
        )


def _said(group: Any, key: str) -> Any:
    """The value, unless it is a default, which nobody has said."""
    return None if key == "compute_dtype" and group.compute_dtype_is_default else getattr(group, key)


def _spelt(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ", ".join(_spelt(item) for item in cast(list[Any], value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _filled(one: Any, other: Any, key: str) -> Any:
    """`one`, with what it leaves open taken from `other`; the source is the one that said `key`."""
    if one is None or other is None:
        return one or other
    open_fields = {f.name for f in dataclasses.fields(one) if getattr(one, f.name) is None}
    if key in open_fields and getattr(other, key) is not None:
        open_fields |= {"source", "requested_by"} & {f.name for f in dataclasses.fields(one)}
    return dataclasses.replace(one, **{name: getattr(other, name) for name in open_fields})


def _consistent(precision: Precision | None) -> Precision | None:
    """A loss scaler exists only in float16; the settings of one that "auto" did not switch on mean nothing."""
    if precision is None or precision.compute in (None, "float16"):
        return precision
    none: Mapping[str, None] = dict.fromkeys(("initial_scale", "hysteresis", "min_scale", "scale_window"))
    return dataclasses.replace(precision, scaler="none", **none)
