"""Facts of a format that its tables of keys describe, and what all such formats share."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

from finitune.facts import DEFAULT_LOSS_SCALE, Adapter, Batching, Facts, Optimizer, Precision, Training
from finitune.sources.configs.format import Keys, Settings
from finitune.sources.configs.keys import group

MAX_DEPTH = 12


def facts_of(
    data: Settings, file: str, tables: Mapping[str, Keys], *, framework: str, lora: bool | None = None, **more: Any
) -> Facts:
    """The groups that the tables name. `lora`: whether an adapter is trained, None where nothing says so."""
    kind = None if lora is None else "lora" if lora else "none"
    adapter = group(Adapter, data, file, tables.get("adapter", {}) if lora else {}, kind=kind) if kind else None
    return Facts(
        optimizer=group(Optimizer, data, file, tables.get("optimizer", {}), lora=lora),
        adapter=adapter,
        batching=group(Batching, data, file, tables.get("batching", {})),
        training=group(Training, data, file, tables.get("training", {}), framework=framework),
        **more,
    )


def mixed(dtype: str, source: str, framework: str, **scaler: Any) -> Precision:
    """Computed in a dtype over float32 weights, in float16 with a dynamic loss scale."""
    scaled = dtype == "float16"
    said = {"scaler": "dynamic", "initial_scale": DEFAULT_LOSS_SCALE} if scaled else {"scaler": "none"}
    dynamic = {key: value for key, value in scaler.items() if value is not None} if scaled else {}
    return Precision(
        compute=dtype, parameters="float32", requested_by=framework, source=source, **cast(Any, {**said, **dynamic})
    )


def whole(dtype: str, source: str, framework: str) -> Precision:
    """Weights and computation in one dtype, without a loss scale."""
    return Precision(compute=dtype, parameters=dtype, scaler="none", requested_by=framework, source=source)


def leaves(data: Settings, before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every value that is no mapping, with its dotted key."""
    for name, value in data.items():
        if isinstance(value, Mapping) and depth < MAX_DEPTH:
            yield from leaves(cast(Settings, value), f"{before}{name}.", depth + 1)
        else:
            yield f"{before}{name}", value


def nested(flags: Settings) -> dict[str, Any]:
    """`a.b=c` as mappings in mappings, as Hydra reads it; `+a.b=c` adds a key that is not there yet."""
    found: dict[str, Any] = {}
    for name, value in flags.items():
        *path, leaf = name.lstrip("+~").split(".")
        inner = found
        for part in path[:MAX_DEPTH]:
            if not isinstance(inner.get(part), dict):
                inner[part] = {}
            inner = cast(dict[str, Any], inner[part])
        inner[leaf] = value
    return found


def unused(data: Settings, tables: Mapping[str, Keys], others: Collection[str] = ()) -> int:
    """How many of its values no table and none of the `others` names, by dotted key or by their last part."""
    known = {key for table in tables.values() for keys in table.values() for key in keys} | set(others)
    return sum(key not in known and key.rpartition(".")[2] not in known for key, _ in leaves(data))


def over(data: Settings, flags: Settings) -> Settings:
    """The settings with the flags laid over them; inside a section what the flags do not name stays."""
    found = dict(data)
    for key, said in flags.items():
        held = data.get(key)
        inner = isinstance(held, Mapping) and isinstance(said, Mapping)
        found[key] = over(cast(Settings, held), cast(Settings, said)) if inner else said
    return found
