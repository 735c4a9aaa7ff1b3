"""The operator behind an autograd node that `loss_operators` does not list, found by the node's name and arguments.

A node is named after its operator (`CoshBackward0`: `aten::cosh`), and keeps most arguments under their names
(`_saved_dim`). Where every argument is an input with a graph, is kept, or does not change the values, the operator can
be applied again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

OVERLOAD = "overload"
"""Among what is kept of a term: the operator, as in `std.correction`."""
PART = "part"
"""Among what is kept of a term: which of several outputs is used."""
_HARMLESS = frozenset({
    "dtype", "stable", "compute_mode", "check_errors", "driver", "layout", "device", "pin_memory", "memory_format",
    "non_blocking", "copy", "unsafe",
})  # fmt: skip
"""Arguments that no node keeps, and that change no value beyond rounding: their defaults serve."""
_INTO = ("index_put.", "_index_put_impl.")
"""Operators that write into another tensor; one without a graph is taken as zeros, as the derivative of `x[i]` has it,
and the loss shows whether it was."""
_NAME = re.compile(r"(\w+?)Backward\d+")
_TENSORS = ("Tensor", "Optional[Tensor]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Argument:
    name: str
    is_tensor: bool
    may_lack: bool
    default: Any
    by_name: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """One overload of an operator, as its schema has it."""

    overload: str
    arguments: tuple[_Argument, ...]


def name_of(node: Any) -> str:
    """The name of a node; what a view gives where it must be copied is named like the view."""
    return node.name().removesuffix("_copy")


def operator_name(node: str) -> str | None:
    """What a node is named after, as `LogSoftmax` of `LogSoftmaxBackward0`; None where that is no operator."""
    match = _NAME.fullmatch(node)
    return None if match is None else match[1]


def kept_of(node: Any, output: int) -> Mapping[str, Any] | None:
    """What is needed to apply the operator of `node` again beside its inputs; None where something is not kept."""
    found = [kept for form in _forms(name_of(node)) if (kept := _arguments(node, form)) is not None]
    return {**max(found, key=len), PART: output} if found else None


def keeps_inputs(node: Any) -> bool:
    """True where a node keeps some tensor that went into it."""
    return _keeps_some(name_of(node), len(node.next_functions), type(node))


def given_to(node: Any) -> tuple[Tensor | None, ...]:
    """The values that went into a node, in the order of its edges, where it keeps them."""
    for names in _tensors_of(node):
        values = [getattr(node, f"_saved_{name}", None) for name in names]
        if any(isinstance(value, Tensor) for value in values):
            return tuple(value if isinstance(value, Tensor) else None for value in values)
    return (None,) * len(node.next_functions)


def _tensors_of(node: Any) -> tuple[tuple[str, ...], ...]:
    """For each form that has as many tensors as the node has edges, their names."""
    return _tensor_names(name_of(node), len(node.next_functions), type(node))


@cache
def _keeps_some(name: str, edges: int, kind: type) -> bool:
    return any(hasattr(kind, f"_saved_{one}") for names in _tensor_names(name, edges, kind) for one in names)


@cache
def _tensor_names(name: str, edges: int, kind: type) -> tuple[tuple[str, ...], ...]:
    found: list[tuple[str, ...]] = []
    for form in _forms(name):
        names = tuple(one.name for one in form.arguments if one.is_tensor)
        others = [one.name for one in form.arguments if not one.is_tensor and not one.may_lack]
        if len(names) == edges and all(hasattr(kind, f"_saved_{other}") for other in others):
            found.append(names)
    return tuple(found)


def apply(kept: Mapping[str, Any], *inputs: Tensor | None) -> Any:
    """The operator once more; None among `inputs` stands for one without a graph."""
    base, _, name = str(kept[OVERLOAD]).partition(".")
    overload = getattr(getattr(torch.ops.aten, base), name)
    rest = iter(inputs)
    positional: list[Any] = []
    by_name: dict[str, Any] = {}
    for one in _form(overload).arguments:
        value = next(rest, None) if one.is_tensor else None
        value = kept.get(one.name, one.default) if value is None else value
        if one.by_name:
            by_name[one.name] = value
        else:
            positional.append(value)
    out = overload(*positional, **by_name)
    return out[kept[PART]] if isinstance(out, tuple | list) else out


def _arguments(node: Any, form: _Form) -> dict[str, Any] | None:
    edges = list(node.next_functions)
    kept: dict[str, Any] = {OVERLOAD: form.overload}
    for argument in form.arguments:
        edge = edges.pop(0) if argument.is_tensor and edges else (None, 0)
        if edge[0] is not None:
            continue
        name = f"_saved_{argument.name}"
        value = getattr(node, name, None)
        if value is None and argument.name == "self" and form.overload.startswith(_INTO):
            of = node._input_metadata[0]
            value = torch.zeros((), dtype=of.dtype, device=of.device).expand(of.shape)
        if isinstance(value, Tensor) != argument.is_tensor and value is not None:
            return None
        if value is not None or (hasattr(node, name) and not argument.is_tensor):
            kept[argument.name] = signed(value)
        elif not argument.may_lack:
            return None
    return None if edges else kept


def signed(value: Any) -> Any:
    """Sizes and dimensions are saved unsigned: -1 reads as 2**64 - 1."""
    if isinstance(value, tuple | list):
        return [signed(v) for v in value]
    return value - 2**64 if isinstance(value, int) and value >= 2**63 else value


@cache
def _forms(node: str) -> tuple[_Form, ...]:
    """Of the operator that a node is named after: those that draw no random numbers and write to nothing."""
    name = operator_name(node)
    if name is None:
        return ()
    stem = name.lower()
    names = _names().get(stem) or _names().get(f"{stem}forward") or ()
    overloads = [getattr(getattr(torch.ops.aten, base), name or "default", None) for base, name in names]
    return tuple(_form(one) for one in overloads if one is not None and _is_plain(one))


def _is_plain(overload: Any) -> bool:
    """It writes to nothing, draws no random numbers, and its dimensions have numbers."""
    drawn = torch.Tag.nondeterministic_seeded in overload.tags
    return not overload._schema.is_mutable and not drawn and "dimname" not in overload._overloadname


@cache
def _form(overload: Any) -> _Form:
    schema = overload._schema
    return _Form(
        overload=f"{schema.name.removeprefix('aten::')}.{overload._overloadname}",
        arguments=tuple(
            _Argument(
                name=one.name, is_tensor=str(one.type) in _TENSORS, default=one.default_value, by_name=one.kwarg_only,
                may_lack=one.name in _HARMLESS or str(one.type) == "Optional[Tensor]",
            )
            for one in schema.arguments
        ),
    )  # fmt: skip


@cache
def _names() -> dict[str, list[tuple[str, str]]]:
    """Operators and their overloads, by name in small letters without underscores."""
    found: dict[str, list[tuple[str, str]]] = {}
    for full in torch._C._dispatch_get_all_op_names():
        space, _, rest = full.partition("::")
        base, _, overload = rest.partition(".")
        if space == "aten" and not base.endswith("_") and not base.startswith("__"):
            found.setdefault(base.replace("_", "").lower(), []).append((base, overload))
    return found
