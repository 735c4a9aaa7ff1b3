"""Facts as strict JSON, and back: a recording written elsewhere may lack a group or hold a broken one."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from finitune.facts import Facts
from finitune.finding import as_json, number


def facts_as_json(facts: Facts) -> dict[str, Any]:
    """Strict JSON; groups that are None are left out."""
    return {k: v for k, v in as_json(facts).items() if v is not None}


def facts_from_json(data: Mapping[str, Any]) -> Facts:
    """Facts from what `facts_as_json` wrote; unknown keys are ignored, a broken group becomes None."""
    groups: dict[str, Any] = {}
    for name, kind in types_of(Facts).items():
        value = data.get(name)
        if value is None:
            continue
        try:
            groups[name] = revived(kind, value)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
            continue
    return Facts(**groups)


def types_of(kind: type) -> dict[str, Any]:
    """Field name -> type without `| None`."""
    hints = typing.get_type_hints(kind)
    return {f.name: _without_none(hints[f.name]) for f in dataclasses.fields(kind)}


def _without_none(hint: Any) -> Any:
    options = [option for option in typing.get_args(hint) if option is not type(None)]
    return options[0] if type(None) in typing.get_args(hint) and len(options) == 1 else hint


def revived(kind: Any, value: Any) -> Any:
    """The value that `as_json` wrote, as `kind` again.

    Raises ArithmeticError, AttributeError, LookupError, RecursionError, TypeError or ValueError when it cannot be one.
    """
    if typing.get_origin(kind) is typing.Literal:
        if value in typing.get_args(kind):
            return value
        raise ValueError(f"expected one of {typing.get_args(kind)}, not {value!r:.40}")
    if dataclasses.is_dataclass(kind):
        fields = types_of(cast("type", kind))
        given = {k: revived(fields[k], v) for k, v in value.items() if k in fields and v is not None}
        return cast("Any", kind)(**given)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is np.ndarray:
        dtype = typing.get_args(args[1])[0]
        found = np.array([revived(float, v) for v in value] if dtype is np.float64 else value, dtype=dtype)
        if found.ndim != 1:
            raise ValueError(f"expected a list of numbers, not {value!r:.40}")
        return found
    if origin is Mapping:
        return {args[0](k): revived(args[1], v) for k, v in value.items()}
    if origin is Sequence and isinstance(value, list):
        return [revived(args[0], v) for v in cast("list[Any]", value)]
    if kind is float and (plain := number(value)) is not None:
        return plain
    if not isinstance(kind, type) or not isinstance(value, kind):
        raise TypeError(f"expected {kind}, not {value!r:.40}")
    return value
