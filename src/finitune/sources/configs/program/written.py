"""Where the value of an expression is written: a constant, the default of a flag or a field, an assignment, a caller.

That is the line to edit; the line that only takes the value would say the same with any other.
"""

from __future__ import annotations

import ast
from typing import cast

from finitune.sources.configs.program import typed
from finitune.sources.configs.program.bindings import RECORDS, binding_of
from finitune.sources.configs.program.names import Binding, Function, Scope, Site, defaults_of, last_name, parameters_of
from finitune.sources.configs.program.values import Reader

MAX_DEPTH = 20
CONVERTS = ("float", "int", "str", "bool", "Path")
PARSES = ("parse_args", "parse_known_args")
PARSES_CLASSES = ("parse_args_into_dataclasses", "parse_args_and_config")

Place = tuple[ast.AST, Site]


def line_of(reader: Reader, node: ast.expr, site: Site) -> int:
    """The line that decides the value of `node`; its own where no other one does alone."""
    reader.begin()
    found = _expression(reader, node, site, 0)
    return getattr(found[0], "lineno", node.lineno) if found else node.lineno


def _expression(reader: Reader, node: ast.AST | None, site: Site, depth: int) -> Place | None:
    """The expression that a value goes back to, with its place; None where several may be meant."""
    if node is None or depth > MAX_DEPTH:
        return None
    found: Place | None = (node, site)
    if isinstance(node, ast.Name):
        found = _name(reader, node, site, depth)
    elif isinstance(node, ast.Attribute):
        found = _attribute(reader, node, site, depth)
    elif isinstance(node, ast.Subscript):
        inner = _made(reader, node.value, site, depth)
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        found = _part(reader, inner, str(key), depth) if inner and isinstance(key, str) else None
    elif isinstance(node, ast.Call) and last_name(node.func) in CONVERTS and len(node.args) == 1:
        found = _expression(reader, node.args[0], site, depth + 1)
    return found


def _name(reader: Reader, node: ast.Name, site: Site, depth: int) -> Place | None:
    one = binding_of(reader, node.id, site)
    if isinstance(one, Binding):
        plain = one.symbol is None and one.index is None and not isinstance(one.value, Function | ast.ClassDef)
        return _expression(reader, one.value, one.site, depth + 1) if plain else None
    given = _given(reader, node.id, site)
    return _expression(reader, *given, depth + 1) if given else None


def _given(reader: Reader, name: str, site: Site) -> Place | None:
    """What the one caller of the function around gives for a parameter, else its default."""
    scope: Scope | None = site.scope
    while scope is not None and not (isinstance(scope.node, Function) and name in parameters_of(scope.node)):
        scope = None if name in scope.bindings else scope.outer
    if scope is None or not isinstance(scope.node, Function) or name in scope.bindings:
        return None
    node = scope.node
    outer = Site(scope=scope.outer or scope, at=(node.lineno, 0), blocks=scope.blocks)
    for one in node.decorator_list:
        if isinstance(one, ast.Call) and last_name(one.func) == "option" and name in typed.destinations(one):
            return None if typed.of([name], reader.typed) else (_default(one), outer)
    method = scope.outer is not None and isinstance(scope.outer.node, ast.ClassDef)
    called = scope.outer.node.name if method and node.name == "__init__" else node.name  # type: ignore[union-attr]
    callers = [call for call in reader.names.calls_named(cast(str, called)) if isinstance(call.node.func, ast.Name)]
    if len(callers) > 1:
        return None
    for call in callers:
        said = next((keyword.value for keyword in call.node.keywords if keyword.arg == name), None)
        index = parameters_of(node).index(name) - method
        if said is None and 0 <= index < len(call.node.args):
            said = call.node.args[index]
        if said is not None:
            return said, call.site
    default = defaults_of(node).get(name)
    return (default, outer) if default is not None and not typed.of([name], reader.typed) else None


def _attribute(reader: Reader, node: ast.Attribute, site: Site, depth: int) -> Place | None:
    owner = last_name(node.value)
    later = [one for one in reader.names.attributes if one.name == node.attr and one.owner == owner]
    if later:
        return _expression(reader, later[0].value, later[0].site, depth + 1) if len(later) == 1 else None
    inner = _made(reader, node.value, site, depth)
    return _part(reader, inner, node.attr, depth) if inner else None


def _made(reader: Reader, node: ast.AST, site: Site, depth: int) -> tuple[ast.AST, Site, int | None] | None:
    """The class, call or dict that an object goes back to, and which of several objects of a call it is."""
    if depth > MAX_DEPTH:
        return None
    if isinstance(node, ast.Name):
        one = binding_of(reader, node.id, site)
        if isinstance(one, Binding):
            if one.value is None or one.symbol is not None:
                return None
            found = _made(reader, one.value, one.site, depth + 1)
            return (*found[:2], one.index) if found and one.index is not None else found
        given = _given(reader, node.id, site)
        return _made(reader, *given, depth + 1) if given else None
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, int):
        found = _made(reader, node.value, site, depth + 1)
        return (*found[:2], node.slice.value) if found else None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        one = binding_of(reader, node.func.id, site)
        returns = reader.names.returns.get(id(one.value), []) if isinstance(one, Binding) else []
        if isinstance(one, Binding) and isinstance(one.value, Function):
            return _made(reader, *returns[0], depth + 1) if len(returns) == 1 else None
    return node, site, None


def _part(reader: Reader, made: tuple[ast.AST, Site, int | None], name: str, depth: int) -> Place | None:
    """The expression of one attribute or key of what was made."""
    node, site, index = made
    if isinstance(node, ast.ClassDef):
        return _field(reader, node, name)
    if isinstance(node, ast.Dict):
        held = [value for key, value in zip(node.keys, node.values, strict=True) if _says(key, name)]
        return _expression(reader, held[-1], site, depth + 1) if held else None
    if not isinstance(node, ast.Call):
        return None
    called = last_name(node.func)
    if called in PARSES:
        options = [c for c in reader.names.calls_named("add_argument") if name in typed.destinations(c.node)[:1]]
        typed_too = typed.of(typed.spellings(options[0].node), reader.typed) if options else None
        if len(options) != 1 or typed_too is not None:
            return None
        return _expression(reader, _default(options[0].node), options[0].site, depth + 1)
    said = next((keyword.value for keyword in node.keywords if keyword.arg == name), None)
    if called in PARSES_CLASSES:
        parsers = [call for one in typed.ARGUMENT_PARSERS for call in reader.names.calls_named(one)]
        if len(parsers) != 1 or not parsers[0].node.args or name in reader.typed:
            return None
        first = parsers[0].node.args[0]
        parts = first.elts if isinstance(first, ast.Tuple | ast.List) else [first]
        of = parts[index or 0] if (index or 0) < len(parts) else None
        inner = _made(reader, of, parsers[0].site, depth + 1) if of is not None else None
        return _field(reader, inner[0], name) if inner and isinstance(inner[0], ast.ClassDef) else None
    if said is not None:
        return _expression(reader, said, site, depth + 1)
    if called in typed.CLASS_PARSERS and name not in reader.typed:
        given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "config_class")]
        inner = _made(reader, given[0], site, depth + 1) if given else None
        return _field(reader, inner[0], name) if inner and isinstance(inner[0], ast.ClassDef) else None
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        return None
    one = binding_of(reader, called, site) if called not in (*RECORDS, "dict") else None
    return _field(reader, one.value, name) if isinstance(one, Binding) and isinstance(one.value, ast.ClassDef) else None


def _field(reader: Reader, node: ast.ClassDef, name: str) -> Place | None:
    scope = reader.names.scopes[id(node)]
    held = scope.bindings.get(name)
    if not held or held[-1].value is None:
        return None
    value = held[-1].value
    return (_default(value) if isinstance(value, ast.Call) else value), held[-1].site


def _default(call: ast.Call) -> ast.AST:
    """The default of an option or a field, else the whole call."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == "default"), call)


def _says(key: ast.expr | None, name: str) -> bool:
    return isinstance(key, ast.Constant) and key.value == name
