"""A tensor that is not finite in a module that no optimizer trains: a codebook, running statistics, a frozen network.

Such modules are known to nobody but the program itself: they are looked for in the variables of the frames that run.
And the module in whose code a line stands.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from finitune.finding import Origin
from finitune.monitor.origin.locate import bad_leaf, is_written, named_tensors
from finitune.monitor.probes.modules import Modules
from finitune.monitor.user_code.frame_variables import locals_of
from finitune.monitor.user_code.source_line import user_frames

MOST_MODULES = 64
"""Looked at in the variables of all frames together."""
_IN_FUNCTION = re.compile(r"(.+?):(\d+) in (\w+): ")


def bad_tensor(known: set[int], *, written: bool) -> Origin | None:
    """The first parameter or buffer that holds NaN or +inf, under the name of its variable; None where there is none.
    `known` are the identities of modules that were looked at before. Buffers that steps write, as a memory of features,
    are looked at with `written` alone.
    """
    left = MOST_MODULES
    for frame in user_frames():
        for name, module in _modules(locals_of(frame)):
            if id(module) in known or not left:
                continue
            left -= 1
            known |= {id(inner) for inner in module.modules()}
            own = [(f"{name}.{inner}", t) for inner, t in named_tensors(module) if written or not _may_write(module, t)]
            found = bad_leaf(own, ())
            if found is not None:
                return found
    return None


def _may_write(module: nn.Module, tensor: Tensor) -> bool:
    """A step may write to it: what is written through `data` counts no writes."""
    return is_written(tensor) or (module.training and not isinstance(tensor, nn.Parameter))


def modules_of_variables() -> Iterator[nn.Module]:
    """Those that variables of the running frames hold."""
    return islice((module for frame in user_frames() for _, module in _modules(locals_of(frame))), MOST_MODULES)


def module_of(line: str, modules: Modules, running: str | None = None) -> str | None:
    """The name of the module within another in whose method the line stands, as `user_line` gives it; None where it
    stands in none, or several are of that class. Where none of those that train is meant, as where functional_call is
    given weights, it is one that a variable holds. Where the forward of one is `running`, it is that one, or the only
    one within it that has such a method.
    """
    if running is not None:
        return _of_running(running, line, modules)
    for inner in (_inner(modules), _inner_of_variables()):
        held = {id(module): name for name, module in _holding(line, inner)}
        if held:
            return next(iter(held.values())) if len(held) == 1 else None
    return None


def _of_running(running: str, line: str, modules: Modules) -> str:
    named = [*(("", root) for root in modules.roots()), *_inner(modules)]
    held = {name for name, _ in _holding(line, named)}
    within = [name for name in held if name.startswith(f"{running}." if running else "")]
    return within[0] if len(within) == 1 and running not in held else running


def _holding(line: str, named: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    """Those with the method in which the line stands."""
    place = _IN_FUNCTION.match(line)
    if place is not None:
        file, number, function = place[1], int(place[2]), place[3]
        yield from (one for one in named if _holds(type(one[1]), file, number, function))


def runs_in_forward(line: str, modules: Modules) -> bool:
    """Whether the line stands in the forward of a module, or in a method of its that the forward calls."""
    place = _IN_FUNCTION.match(line)
    kinds = {type(module) for _, module in modules.module_names()}
    return place is not None and any(
        place[3] in _called_in_forward(kind) for kind in kinds if _holds(kind, place[1], int(place[2]), place[3])
    )


def _called_in_forward(kind: type) -> set[str]:
    """The names of the methods that the forward of this class runs, and its own."""
    found: set[str] = set()
    names = {"forward"}
    while names:
        found |= names
        methods = [inspect.unwrap(one) for name in names if isinstance(one := getattr(kind, name, None), FunctionType)]
        names = {name for one in methods for name in one.__code__.co_names if hasattr(kind, name)} - found
    return found


def is_inner(name: str | None, modules: Modules) -> bool:
    """Whether this is the name of a module within another."""
    return any(name == each for each, _ in _inner(modules))


def names_of_inner() -> dict[int, str]:
    """By the identity of each module within one that a variable of a running frame holds, its longest name."""
    named = sorted(_inner_of_variables(), key=lambda one: one[0].count("."))
    return {id(module): name for name, module in named}


def _inner(modules: Modules) -> Iterator[tuple[str, nn.Module]]:
    roots = {id(root) for root in modules.roots()}
    return ((name, module) for name, module in modules.module_names() if id(module) not in roots)


def _inner_of_variables() -> Iterator[tuple[str, nn.Module]]:
    for root in modules_of_variables():
        yield from ((name, module) for name, module in root.named_modules() if name)


def _holds(kind: type, file: str, number: int, function: str) -> bool:
    methods = (vars(each).get(function) for each in kind.__mro__)
    codes = (inspect.unwrap(method).__code__ for method in methods if isinstance(method, FunctionType))
    return any(
        Path(code.co_filename).name == file and number in {at for *_, at in code.co_lines() if at} for code in codes
    )


def _modules(variables: Mapping[str, Any]) -> Iterator[tuple[str, nn.Module]]:
    """Those that a variable holds, and those of the object whose method runs."""
    own = variables.get("self")
    inner = vars(own) if hasattr(own, "__dict__") and not isinstance(own, nn.Module) else {}
    for prefix, held in (("", variables), ("self.", inner)):
        for name, value in list(held.items()):
            if isinstance(value, nn.Module):
                yield f"{prefix}{name}", value
