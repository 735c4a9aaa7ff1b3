"""What a Python file binds to its names and which calls it makes, by `ast`; nothing is evaluated."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

MAX_STATEMENTS = 200_000
"""Statements of one file that are looked at; no program of a person has as many."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Blocks = tuple[tuple[int, int], ...]
"""The branches and loops around a statement, outermost first: which one, and which arm of it."""

Position = tuple[int, int]
"""Line, from 1, and column."""

SAME_RUN = ("__name__", "TYPE_CHECKING")
"""Tests whose body is taken to run: they ask how the file was started."""

STRAIGHT = -1
"""The number of a block that runs whenever the one around it does."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Binding:
    """One place where a name gets a value. `value` None means that only running would tell."""

    value: ast.AST | None
    site: Site
    end: Position
    index: int | None = None
    """Of a value that is taken apart, the element that the name gets."""
    symbol: str | None = None
    """What was imported, with its module."""

    @property
    def line(self) -> int:
        return self.site.at[0]

    @property
    def blocks(self) -> Blocks:
        return self.site.blocks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scope:
    """The module, a class or a function, and what its statements bind."""

    node: ast.Module | ast.ClassDef | Function
    outer: Scope | None
    blocks: Blocks = ()
    bindings: dict[str, list[Binding]] = field(default_factory=dict[str, list[Binding]])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """Where an expression stands."""

    scope: Scope
    at: Position
    blocks: Blocks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """A call with its place, and the names that its value is bound to."""

    node: ast.Call
    site: Site
    targets: Sequence[str] = ()

    @property
    def line(self) -> int:
        return self.node.lineno


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttributeSet:
    """`owner.name = value`."""

    owner: str
    name: str
    value: ast.expr
    site: Site


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Names:
    """Everything that one file binds, calls and sets, in the order of the file."""

    module: Scope
    scopes: dict[int, Scope]
    """Of each class and function, by the identity of its node."""
    calls: list[Call]
    attributes: list[AttributeSet]
    returns: dict[int, list[tuple[ast.expr, Site]]]
    """What each function returns."""
    tests: dict[int, tuple[ast.expr, Site]]
    """Of each branch, by the identity of its node."""

    by_name: dict[str, list[Call]] = field(default_factory=dict[str, list[Call]])
    joined: set[str] = field(default_factory=set[str])
    """Attributes that text is put together with: of `text + tokenizer.eos_token` its last name."""
    file: str = ""

    def calls_named(self, name: str) -> list[Call]:
        """Those of a name or attribute that ends so."""
        return self.by_name.get(name, [])

    def imports(self, package: str) -> bool:
        """Whether anything of it is imported, anywhere in the file."""
        bound = (
            one for scope in (self.module, *self.scopes.values()) for many in scope.bindings.values() for one in many
        )
        return any((one.symbol or "").partition(".")[0] == package for one in bound)


def last_name(node: ast.expr) -> str:
    """`c` of `a.b.c`; empty for what is no name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def parameters_of(node: Function) -> list[str]:
    """The names of its parameters, in their order."""
    given = node.args
    return [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def defaults_of(node: Function) -> dict[str, ast.expr]:
    """The default of each parameter that has one."""
    given = node.args
    positions = [arg.arg for arg in (*given.posonlyargs, *given.args)]
    defaults = dict(zip(reversed(positions), reversed(given.defaults), strict=False))
    return defaults | {arg.arg: value for arg, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value}


def names_of(tree: ast.Module, file: str = "") -> Names:
    """The names of a file, and what it is called. Raises ValueError for one with more statements than any."""
    module = Scope(node=tree, outer=None)
    names = Names(module=module, scopes={}, calls=[], attributes=[], returns={}, tests={}, file=file)
    todo: list[tuple[Sequence[ast.stmt], Scope, Blocks]] = [(tree.body, module, ())]
    seen = 0
    while todo:  # no recursion: a chain of elif is as deep as it is long
        body, scope, blocks = todo.pop()
        inner: list[tuple[Sequence[ast.stmt], Scope, Blocks]] = []
        for statement in body:
            seen += 1
            if seen > MAX_STATEMENTS:
                raise ValueError(f"more than {MAX_STATEMENTS} statements")
            _bind(statement, scope, blocks, names)
            inner += _bodies(statement, scope, blocks, names)
        todo += reversed(inner)
    names.calls.sort(key=lambda call: (call.node.lineno, call.node.col_offset))
    for call in names.calls:
        names.by_name.setdefault(last_name(call.node.func), []).append(call)
    for scope in (module, *names.scopes.values()):
        for bindings in scope.bindings.values():
            bindings.sort(key=lambda one: one.end)
    return names


def _bodies(
    node: ast.stmt, scope: Scope, blocks: Blocks, names: Names
) -> Iterator[tuple[Sequence[ast.stmt], Scope, Blocks]]:
    """The statements inside a statement, each list with its scope and its branch."""
    if isinstance(node, Function | ast.ClassDef):
        inner = Scope(node=node, outer=scope, blocks=blocks)
        names.scopes[id(node)] = inner
        yield node.body, inner, ()
    elif isinstance(node, ast.With | ast.AsyncWith):
        yield node.body, scope, blocks
    elif isinstance(node, ast.If):
        started = any(isinstance(n, ast.Name) and n.id in SAME_RUN for n in ast.walk(node.test))
        names.tests[id(node)] = node.test, Site(scope=scope, at=(node.lineno, node.col_offset), blocks=blocks)
        yield node.body, scope, blocks if started else (*blocks, (id(node), 0))
        yield node.orelse, scope, (*blocks, (id(node), 1))
    else:
        arms: list[Any] = [getattr(node, name, None) or () for name in ("body", "orelse", "finalbody")]
        arms += [one.body for name in ("handlers", "cases") for one in cast(list[Any], getattr(node, name, ()))]
        for body in arms:  # loops, try, match: whichever of them runs
            yield body, scope, (*blocks, (id(node), STRAIGHT))


def _bind(node: ast.stmt, scope: Scope, blocks: Blocks, names: Names) -> None:
    """What one statement binds, calls, sets and returns; the statements inside it are left alone."""
    site = Site(scope=scope, at=(node.lineno, node.col_offset), blocks=blocks)
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)

    def bound(name: str, value: ast.AST | None, index: int | None = None, symbol: str | None = None) -> None:
        one = Binding(value=value, site=site, end=end, index=index, symbol=symbol)
        scope.bindings.setdefault(name, []).append(one)

    targets: list[str] = []
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            targets += _assigned(target, node.value, site, names, bound)
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        bound(node.target.id, None)
    elif isinstance(node, ast.Import):
        for alias in node.names:
            bound(alias.asname or alias.name.partition(".")[0], node, symbol=alias.name if alias.asname
                  else alias.name.partition(".")[0])  # fmt: skip
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            bound(alias.asname or alias.name, node, symbol=f"{'.' * node.level}{node.module or ''}.{alias.name}")
    elif isinstance(node, Function | ast.ClassDef):
        bound(node.name, node)
    elif isinstance(node, ast.Return) and node.value is not None:
        names.returns.setdefault(id(scope.node), []).append((node.value, site))
    elif isinstance(node, ast.Global):
        for name in node.names:
            elsewhere = Site(scope=names.module, at=site.at, blocks=((id(node), STRAIGHT),))
            one = Binding(value=None, site=elsewhere, end=end)
            names.module.bindings.setdefault(name, []).append(one)
    for target in _by_running(node):
        bound(target, None)
    value = getattr(node, "value", None)
    for expression in _expressions(node):
        for inner in ast.walk(expression):
            if isinstance(inner, ast.Call):
                own = targets if inner is value or _receives(value, inner) else ()
                names.calls.append(Call(node=inner, site=site, targets=own))
            elif isinstance(inner, ast.BinOp | ast.FormattedValue):
                parts = (inner.left, inner.right) if isinstance(inner, ast.BinOp) else (inner.value,)
                names.joined.update(part.attr for part in parts if isinstance(part, ast.Attribute))


def _receives(value: ast.AST | None, call: ast.Call) -> bool:
    """Whether `value` is methods of what the call gives: `Net().cuda().half()`."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
        if value is call:
            return True
    return False


def _assigned(
    target: ast.expr, value: ast.expr, site: Site, names: Names, bound: Callable[[str, ast.AST, int | None], None]
) -> list[str]:
    """The names that an assignment binds to the whole of its value, or to the first of its parts."""
    if isinstance(target, ast.Name):
        bound(target.id, value, None)
        return [target.id]
    if isinstance(target, ast.Tuple | ast.List):
        same = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
        for index, part in enumerate(target.elts):
            if isinstance(part, ast.Name):
                parts = value.elts if same and isinstance(value, ast.Tuple | ast.List) else None
                bound(part.id, parts[index] if parts else value, None if parts else index)
        return [part.id for part in target.elts[:1] if isinstance(part, ast.Name) and not same]
    if isinstance(target, ast.Attribute):
        owner = last_name(target.value)
        names.attributes.append(AttributeSet(owner=owner, name=target.attr, value=value, site=site))
        return [target.attr] if owner == "self" else []
    return []


def _by_running(node: ast.stmt) -> Iterator[str]:
    """Names that a statement binds to what only running would tell."""
    held: list[ast.AST] = []
    if isinstance(node, ast.For | ast.AsyncFor):
        held.append(node.target)
    elif isinstance(node, ast.With | ast.AsyncWith):
        held += [item.optional_vars for item in node.items if item.optional_vars is not None]
    elif isinstance(node, ast.Delete):
        held += node.targets
    else:
        return
    for one in held:
        for inner in ast.walk(one):
            if isinstance(inner, ast.Name):
                yield inner.id


def _expressions(node: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement, without the statements inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr | ast.withitem | ast.keyword):
            yield child
        elif isinstance(child, ast.arguments):
            yield from (default for default in (*child.defaults, *child.kw_defaults) if default is not None)
