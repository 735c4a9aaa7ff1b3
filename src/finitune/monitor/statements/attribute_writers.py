"""The statement, in a function that has ended, that made an attribute of an object of the program's bad.

What a callback has written into a state that all share, or a method of a model into a buffer, is bad when a later step
takes it, and what it was computed of is gone. Where of all statements that write an attribute of that name, and of
those that these take variables from, one alone can make a finite number bad, it is that one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from finitune.finding import Origin
from finitune.monitor.origin.frame_modules import runs_in_forward
from finitune.monitor.origin.locate import leaf_origin
from finitune.monitor.probes.finite import places
from finitune.monitor.probes.modules import Modules
from finitune.monitor.statements.bad_value_operators import Maker, makers_in, only_one
from finitune.monitor.user_code.frame_variables import variables_of
from finitune.monitor.user_code.source_line import user_frames, user_modules
from finitune.monitor.user_code.source_tree import (
    feeding,
    names_in,
    nodes_in,
    parsed,
    scope_of,
    statements_in,
    written_in_place,
)
from finitune.monitor.user_code.variables import value_of


def written_bad(value: Tensor) -> Origin | None:
    """Where the attribute that holds this bad tensor, in a running frame, was made bad; None where that is not sure."""
    for frame in user_frames():
        scope, values = scope_of(frame.f_code), variables_of(frame)
        for node in nodes_in(scope) if scope is not None else ():
            if isinstance(node, ast.Attribute) and _is(value_of(node, values), value):
                return made_by_writers(leaf_origin("input", ast.unparse(node), value, places(value)))
    return None


def made_by_writers(held: Origin, modules: Modules | None = None) -> Origin | None:
    """The same of a tensor whose name ends in that of the attribute that holds it, as `prior.means`; one of `modules`
    may have made it as its forward ran.
    """
    _, _, attribute = (held.tensor or "").rpartition(".")
    made = only_one(_makers(partial(_is_attribute, attribute)), of_nothing="inf" not in (held.values or ""))
    ran = made is not None and modules is not None and runs_in_forward(made[1], modules)
    return made and replace(held, phase="forward" if ran else "input", module=None, op=made[0], line=made[1], peak=None)


def only_maker_of(is_target: Callable[[ast.expr], bool], *, of_nothing: bool) -> Maker | None:
    """The only operation that can have made such a target bad, in all functions of the program's that write to one, or
    to an attribute that it is computed of.
    """
    return only_one(_makers(is_target, set()), of_nothing=of_nothing)


def _is_attribute(name: str, target: ast.expr) -> bool:
    """It is the attribute, or an element of it."""
    return any(isinstance(each, ast.Attribute) and each.attr == name for each in ast.walk(target))


def _is(held: object, value: Tensor) -> bool:
    return isinstance(held, Tensor) and held.data_ptr() == value.data_ptr() and held.shape == value.shape


def _makers(is_target: Callable[[ast.expr], bool], followed: set[str] | None = None) -> Iterator[Maker | None]:
    """Of what is written to such targets; and to the attributes that it is computed of, where those that were
    `followed` are kept.
    """
    read: set[str] = set()
    for file, space, tree in user_trees():
        for scope in ast.walk(tree):
            if isinstance(scope, ast.FunctionDef):
                for value in _taken(scope, is_target):
                    yield from makers_in(value, space, (file, scope.name))
                    read |= {each.attr for each in ast.walk(value) if isinstance(each, ast.Attribute)}
    if followed is not None:
        read -= followed
        followed |= read
        for name in sorted(read):
            yield from _makers(partial(_is_attribute, name), followed)


def user_trees() -> Iterator[tuple[str, dict[str, Any], ast.Module]]:
    """Of each file of the program's that is imported: its name, the variables of its module, and its tree."""
    for file, space in {str(space["__file__"]): space for space in user_modules()}.items():
        if (tree := parsed(file)) is not None:
            yield file, space, tree


def _taken(scope: ast.FunctionDef, is_target: Callable[[ast.expr], bool]) -> list[ast.AST]:
    """What the function writes to such targets, and what it has written into variables that this takes."""
    taken = [written for node in nodes_in(scope) if (written := _written(node, is_target)) is not None]
    fed = feeding(names_in(taken), list(statements_in(scope))) if taken else []
    return taken + [one.computes for one in fed if one.computes not in taken]


def _written(node: ast.AST, is_target: Callable[[ast.expr], bool]) -> ast.AST | None:
    """What this node writes to such a target; None where it writes to none."""
    match node:
        case ast.Assign(targets=targets, value=written):
            pass
        case ast.AnnAssign(target=target, value=ast.expr() as written):
            targets = [target]
        case ast.AugAssign(target=target):
            targets, written = [target], node
        case ast.Expr(value=ast.Call() as written) if (owner := written_in_place(written)) is not None:
            targets = [owner[0]]
        case _:
            return None
    return written if any(map(is_target, targets)) else None
