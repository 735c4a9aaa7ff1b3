"""What names in the user's source stand for: looked up in its variables, with nothing of the user's called.

An attribute is followed where it is there without running anything: in an object's own dictionary, among the tensors
and modules of a module, or as a function of a class.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, GetSetDescriptorType, MethodType, ModuleType
from typing import Any

from torch import nn

from finitune.monitor.probes.model_calls import is_observed
from finitune.monitor.probes.modules import unwrapped
from finitune.monitor.user_code.source_tree import scope_of

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ParameterList)
_CACHED = type(functools.cache(id))


def value_of(node: ast.expr, names: Mapping[str, Any], unknown: Any = None) -> Any:
    """What a name, an attribute, a module or function in a container stands for; `unknown` where that is not known."""
    if isinstance(node, ast.Name):
        return names.get(node.id, unknown)
    if isinstance(node, ast.Subscript):
        held = value_of(node.value, names)
        place = node.slice.value if isinstance(node.slice, ast.Constant) else value_of(node.slice, names)
        if type(held) is dict and type(place) in (str, int) and callable(function := held.get(place)):
            return function
        there = type(held) in _CONTAINERS and type(place) is int and -len(held) <= place < len(held)
        return held[place] if there else unknown
    owner = value_of(node.value, names) if isinstance(node, ast.Attribute) else None
    if owner is None or not isinstance(node, ast.Attribute):
        return unknown
    held = getattr(owner, "__dict__", {})
    if isinstance(owner, tuple):
        held = {**held, **dict(zip(getattr(type(owner), "_fields", ()), owner, strict=False))}
    if isinstance(owner, nn.Module):
        held = {**held, **owner._modules, **owner._parameters, **owner._buffers}
    if node.attr in held or isinstance(owner, ModuleType):
        return held.get(node.attr, unknown)
    if isinstance(owner, dict) and hasattr(type(owner), "__getattr__"):  # where there is no such attribute
        unknown = dict.get(owner, node.attr, unknown)
    method = inspect.getattr_static(type(owner), node.attr, unknown)
    if isinstance(method, property):
        return held.get(_returned_by(method), method)
    if isinstance(method, GetSetDescriptorType):  # as the shape of a tensor: C would be run
        return unknown
    return MethodType(method, owner) if isinstance(method, FunctionType) else method


def _returned_by(read: property) -> str:
    """The name of the attribute that a property returns as it is, once it is there; empty where it does more."""
    scope = scope_of(read.fget.__code__) if isinstance(read.fget, FunctionType) else None
    match scope.body if isinstance(scope, ast.FunctionDef) else ():
        case [*before, ast.Return(value=ast.Attribute(value=ast.Name(id="self"), attr=name))]:
            absent = f"if not hasattr(self, '{name}')"
            first = (ast.unparse(each).partition(":")[0] for each in before if not isinstance(each, ast.Expr))
            return name if all(each == absent for each in first) else ""
    return ""


def function_behind(value: Any, *, of_models: bool = False) -> tuple[FunctionType | None, Any]:
    """The function behind a method, a decorator, a partial or an object that can be called, and the object whose
    method it is. None for a model that is observed, where not `of_models`: what it computes is not the loop's own.
    """
    own = None
    for _ in range(8):
        if isinstance(value, MethodType):
            value, own = value.__func__, value.__self__
        elif isinstance(value, _CACHED):
            value = value.__wrapped__
        elif isinstance(value, functools.partial | staticmethod | classmethod):
            value = value.func if isinstance(value, functools.partial) else value.__func__
        elif isinstance(value, FunctionType):
            inner = vars(value).get("_torchdynamo_orig_callable") or vars(value).get("__wrapped__")
            if inner is None:
                return value, own
            value = inner
        elif isinstance(value, nn.Module):
            if is_observed(value) and not of_models:
                return None, None
            own = unwrapped(value)
            value = inspect.getattr_static(type(own), "forward", None)
        else:
            call = inspect.getattr_static(type(value), "__call__", None)
            if not isinstance(call, FunctionType):
                return None, None
            value, own = call, value
    return None, None


def models_called(nodes: Iterable[ast.AST], names: Mapping[str, Any]) -> Iterator[tuple[ast.Call, nn.Module]]:
    """The calls of modules that hold weights, and of methods that are theirs alone, among the nodes."""
    for each in nodes:
        if isinstance(each, ast.Call):
            value = value_of(each.func, names)
            if isinstance(value, MethodType) and not hasattr(nn.Module, value.__name__):
                value = value.__self__
            if isinstance(value, nn.Module) and next(value.parameters(), None) is not None:
                yield each, value


def names_within(function: FunctionType) -> dict[str, Any]:
    """What the names in a function stand for that are not its own: globals, and variables of the function around it."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return {**function.__globals__, **{name: cell.cell_contents for name, cell in cells if _is_filled(cell)}}


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
