"""Modules of torch, classes and TorchScript whose call writes nothing, draws no random numbers and runs nothing of the
user's.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules import module as of_modules

from finitune.monitor.user_code.torch_arithmetic import computes

_TORCHS = "torch.nn.modules."
_ACT_IN_TRAINING = ("dropout", "batchnorm", "instancenorm")
"""Parts of the names of modules that draw random numbers, or keep statistics, while they train; others have a
`dropout`.
"""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Of a module; those of all modules are torch's own variables `_global_forward_hooks`, and so on."""
_ACTS_IN_SCRIPT = ("SetAttr", "Print", "CallFunction", "CallMethod", "PythonOp")


def is_plain_script(scripted: Any) -> bool:
    """No operator of its graph, in any branch, writes, prints or draws random numbers."""
    return all(
        name.startswith("__") or computes(name) if space == "aten" else space == "prim" and name not in _ACTS_IN_SCRIPT
        for space, name in (kind.split("::") for kind in _kinds(scripted.inlined_graph))
    )


def _kinds(block: Any) -> Iterator[str]:
    for node in block.nodes():
        yield node.kind()
        for inner in node.blocks():
            yield from _kinds(inner)


def is_plain_module(module: nn.Module) -> bool:
    """All of it is torch's, without hooks, and a call of it changes nothing."""
    return not any(getattr(of_modules, f"_global{hooks}") for hooks in _HOOKS) and all(
        type(one).__module__.startswith(_TORCHS)
        and "forward" not in vars(one)
        and not any(getattr(one, hooks) for hooks in _HOOKS)
        and not (one.training and _acts(one))
        for one in module.modules()
    )


def _acts(module: nn.Module) -> bool:
    return any(part in type(module).__name__.lower() for part in _ACT_IN_TRAINING) or bool(
        getattr(module, "dropout", 0)
    )


def is_plain_record(kind: Any) -> bool:
    """A named tuple, or a dataclass that keeps what it is given and does nothing else."""
    if not isinstance(kind, type) or type(kind) is not type:
        return False
    if issubclass(kind, tuple):
        return hasattr(kind, "_fields") and _is_generated(kind, "__new__")
    generated = dataclasses.is_dataclass(kind) and _is_generated(kind, "__init__") and kind.__bases__ == (object,)
    return (
        generated
        and not hasattr(kind, "__post_init__")
        and not any(_makes_default(f) for f in dataclasses.fields(kind))
    )


def _is_generated(kind: type, method: str) -> bool:
    code = getattr(inspect.getattr_static(kind, method), "__code__", None)
    code = code or getattr(getattr(kind, method), "__code__", None)
    return code is not None and code.co_filename.startswith("<")


def _makes_default(field: dataclasses.Field[Any]) -> bool:
    return field.default_factory not in (dataclasses.MISSING, list, dict)
