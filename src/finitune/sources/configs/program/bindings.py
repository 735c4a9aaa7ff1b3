"""Names of a Python file -> their values: assignments, parameters, fields of classes, defaults of a command line."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from finitune.facts import Hardware
from finitune.sources.configs.program import typed
from finitune.sources.configs.program.expressions import EXPRESSIONS
from finitune.sources.configs.program.names import (
    STRAIGHT,
    Binding,
    Blocks,
    Call,
    Function,
    Names,
    Scope,
    Site,
    defaults_of,
    parameters_of,
)
from finitune.sources.configs.program.names import last_name as last
from finitune.sources.configs.program.settings_files import handed_over, loaded
from finitune.sources.configs.program.values import Computed, Defined, Reader, Record, Symbol, known

MAX_CALLERS = 8
ASKS_CARD = {"is_bf16_supported", "is_bfloat16_supported", "is_torch_bf16_gpu_available", "is_torch_bf16_available",
             "is_bf16_available"}  # fmt: skip
RECORDS = {"SimpleNamespace", "Namespace", "EasyDict", "AttrDict", "Munch", "DotMap", "ConfigDict"}
_CONVERT: Mapping[str, Callable[[Any], Any]] = {"float": float, "int": int, "str": str, "bool": bool, "abs": abs}


def reader_of(names: Names, *, card: Hardware | None = None, flags: Mapping[str, Any] | None = None) -> Reader:
    """Reads the values of a file, which is started with these flags."""
    return Reader(names=names, kinds=KINDS, card=card, typed=flags or {})


def keywords(reader: Reader, call: Call) -> dict[str, Any]:
    """The keywords of a call, those in `**` of known dicts included; `**` alone stands for what is not known."""
    return _keywords(reader, call.node, call.site, fresh=True)


def value_of(reader: Reader, node: ast.AST | None, site: Site) -> Any:
    """The value of an expression that stands there."""
    reader.begin()
    return reader.value(node, site)


def called(reader: Reader, call: Call) -> str:
    """The dotted name of what is called, through its import; of a method, the name of its owner before it."""
    reader.begin()
    return dotted(reader, call.node.func, call.site)


def dotted(reader: Reader, node: ast.expr, site: Site) -> str:
    """`transformers.Trainer` of a name that was imported so; else the name as it is written."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        binding = binding_of(reader, node.id, site)
        head = binding.symbol if isinstance(binding, Binding) and binding.symbol else node.id
        return ".".join([head, *reversed(parts)])
    return ".".join(["", *reversed(parts)])


def _name(reader: Reader, node: ast.Name, site: Site) -> Any:
    found = binding_of(reader, node.id, site)
    if found is None:
        return Symbol(node.id) if node.id in ("dict", "list", "float", "int", "str", "bool") else Computed(node.lineno)
    return found if not isinstance(found, Binding) else _bound(reader, found)


def binding_of(reader: Reader, name: str, site: Site) -> Binding | Any:
    """The one place that gives the name its value there; its value where several places agree; None where none is."""
    scope: Scope | None = site.scope
    own = True
    while scope is not None:
        found = scope.bindings.get(name, [])
        if own:
            found = [one for one in found if one.end <= site.at and not _excluded(one.blocks, site.blocks)]
        if found and (own or not isinstance(scope.node, ast.ClassDef)):
            return _decided(reader, found, site, own=own)
        if isinstance(scope.node, Function) and name in parameters_of(scope.node):
            return _parameter(reader, name, scope)
        scope, own = scope.outer, False
    return None


def _decided(reader: Reader, found: Sequence[Binding], site: Site, *, own: bool) -> Binding | Any:
    """The last one that must have run, unless one that may have run after it says something else."""
    around = site.blocks if own else ()
    found = [one for one in found if taken(reader, one.blocks, around) is not False]
    sure = next((i for i in reversed(range(len(found))) if taken(reader, found[i].blocks, around)), 0)
    last_ones = found[sure:]
    if len(last_ones) == 1:
        return last_ones[0]
    if not last_ones:
        return Computed(site.at[0])
    if any(one.symbol for one in last_ones):  # try: import a; except ImportError: import b
        return last_ones[0] if all(one.symbol for one in last_ones) else last_ones[-1]
    said = [_bound(reader, one) for one in last_ones]
    alike = all(known(one) and type(one) is type(said[0]) and one == said[0] for one in said)
    return said[0] if alike else Computed(last_ones[-1].line)


def taken(reader: Reader, blocks: Blocks, around: Blocks = ()) -> bool | None:
    """Whether what stands in these branches runs where those `around` do; None where only running would tell."""
    sure: bool | None = True
    for block, arm in blocks:
        if (block, arm) in around:
            continue
        test = reader.names.tests.get(block)
        if test is None or arm == STRAIGHT or block in reader.making:
            sure = None
            continue
        if block not in reader.answers:
            reader.making.add(block)
            reader.answers[block] = reader.value(*test)
            reader.making.discard(block)
        said = reader.answers[block]
        if not known(said) or isinstance(said, Symbol):
            sure = None
        elif bool(said) is not (arm == 0):
            return False
    return sure


def _excluded(blocks: Blocks, around: Blocks) -> bool:
    """In another arm of the same branch."""
    arms = dict(around)
    return any(arm != STRAIGHT and arms.get(block, arm) != arm for block, arm in blocks)


def _bound(reader: Reader, one: Binding) -> Any:
    if one.symbol is not None:
        return Symbol(one.symbol)
    if isinstance(one.value, Function | ast.ClassDef):
        return Defined(reader.names.scopes[id(one.value)])
    value = reader.value(one.value, one.site)
    if isinstance(value, Computed):
        return Computed(one.line, value.card)
    if one.index is None:
        return value
    return cast(list[Any], value)[one.index] if isinstance(value, list) else Computed(one.line)


def _outward(scope: Scope | None) -> list[Scope]:
    found: list[Scope] = []
    while scope is not None:
        found.append(scope)
        scope = scope.outer
    return found


def _parameter(reader: Reader, name: str, scope: Scope) -> Any:
    """What the callers of the function give, where they agree; else its default, where it has one and no caller."""
    node = cast(Function, scope.node)
    line = node.lineno
    if id(node) in reader.making:
        return Computed(line)
    positions = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    defaults = defaults_of(node)
    outer = Site(scope=scope.outer or scope, at=(line, 0), blocks=scope.blocks)
    if node.decorator_list and positions[:1] == [name] and (whole := handed_over(reader, node, outer)) is not None:
        return whole
    default = _option(reader, name, node, outer) if node.decorator_list else None
    said = typed.of([name], reader.typed) if default is None and typed.takes_flags(reader.names, node) else None
    if said is not None:
        default = typed.plain(said[0])
    if default is None:
        default = reader.value(defaults[name], outer) if name in defaults else Computed(line)
    method = scope.outer is not None and isinstance(scope.outer.node, ast.ClassDef)
    called = scope.outer.node.name if method and node.name == "__init__" else node.name  # type: ignore[union-attr]
    callers = [] if method and node.name != "__init__" else reader.names.calls_named(cast(str, called))
    index = positions.index(name) - method if name in positions else -1
    reader.making.add(id(node))
    try:
        values = [_given(reader, name, index, default, call) for call in callers[: MAX_CALLERS + 1]] or [default]
    finally:
        reader.making.discard(id(node))
    same = all(isinstance(one, Record) or (known(one) and one == values[0]) for one in values)
    return values[0] if len(values) == 1 or (same and len(values) <= MAX_CALLERS) else Computed(line)


def _given(reader: Reader, name: str, index: int, default: Any, call: Call) -> Any:
    """What one caller gives for a parameter."""
    if any(keyword.arg is None for keyword in call.node.keywords) or any(
        isinstance(arg, ast.Starred) for arg in call.node.args
    ):
        return Computed(call.line)
    said = next((keyword.value for keyword in call.node.keywords if keyword.arg == name), None)
    if said is None and 0 <= index < len(call.node.args):
        said = call.node.args[index]
    return default if said is None else reader.value(said, call.site)


def _option(reader: Reader, name: str, node: Function, site: Site) -> Any:
    """The default of a click option that becomes this parameter."""
    for one in node.decorator_list:
        if isinstance(one, ast.Call) and last(one.func) == "option" and name in typed.destinations(one):
            return _default(reader, one, site)
    return None


def _default(reader: Reader, call: ast.Call, site: Site) -> Any:
    """What is typed for an option; of one that is not given its default, False for a switch."""
    if (given := typed.of(typed.spellings(call), reader.typed)) is not None:
        return typed.option(given[0], call)
    said = {keyword.arg: keyword.value for keyword in call.keywords}
    action = said.get("action")
    switch = action.value if isinstance(action, ast.Constant) else None
    if "default" not in said:
        switched = {"store_true": False, "store_false": True}.get(str(switch))
        return False if "is_flag" in said else Computed(call.lineno) if switched is None else switched
    value = reader.value(said["default"], site)
    kind = said.get("type")
    if isinstance(value, str) and isinstance(kind, ast.Name) and kind.id in ("float", "int"):
        return _CONVERT[kind.id](value)
    return Computed(call.lineno) if value is None else value


def _command_line(reader: Reader) -> Record:
    """What every argparse parser of the file gives."""
    found: dict[str, Any] = {}
    for call in reader.names.calls_named("add_argument"):
        for name in typed.destinations(call.node)[:1]:
            value = _default(reader, call.node, call.site)
            found[name] = value if found.get(name, value) == value else Computed(call.line)
    for call in reader.names.calls_named("set_defaults"):
        found |= _keywords(reader, call.node, call.site)
    return Record(found, "command line")


def _attribute(reader: Reader, node: ast.Attribute, site: Site) -> Any:
    if isinstance(node.value, ast.Name) and node.value.id == "self":
        return _own_attribute(reader, node, site)
    base = reader.value(node.value, site)
    if isinstance(base, Symbol):
        return Symbol(f"{base.name}.{node.attr}")
    if isinstance(base, Defined) and isinstance(base.scope.node, ast.ClassDef):
        base = Record(class_fields(reader, base.scope))
    if isinstance(base, Record):
        later = [one for one in reader.names.attributes if one.name == node.attr and one.owner == last(node.value)]
        if later:
            return reader.value(later[0].value, later[0].site) if len(later) == 1 else Computed(node.lineno)
        return base.attributes.get(node.attr, Computed(node.lineno))
    if isinstance(base, Mapping) and node.attr in base:  # dicts with attributes
        return cast("Mapping[str, Any]", base)[node.attr]
    return Computed(node.lineno, isinstance(base, Computed) and base.card)


def _own_attribute(reader: Reader, node: ast.Attribute, site: Site) -> Any:
    """`self.lr`, where the class sets it once."""
    around = next((scope for scope in _outward(site.scope) if isinstance(scope.node, ast.ClassDef)), None)
    said = [
        one for one in reader.names.attributes
        if one.owner == "self" and one.name == node.attr and around in _outward(one.site.scope)
    ]  # fmt: skip
    if len(said) == 1:
        return reader.value(said[0].value, said[0].site)
    fields = class_fields(reader, around) if around is not None and not said else {}
    return fields.get(node.attr, Computed(node.lineno))


def class_fields(reader: Reader, scope: Scope) -> dict[str, Any]:
    """The values in the body of a class, those of classes of this file above it included."""
    node = cast(ast.ClassDef, scope.node)
    if id(node) in reader.making:
        return {}
    reader.making.add(id(node))
    found: dict[str, Any] = {}
    try:
        for base in node.bases:
            above = reader.value(base, Site(scope=scope.outer or scope, at=(node.lineno, 0), blocks=scope.blocks))
            if isinstance(above, Defined) and isinstance(above.scope.node, ast.ClassDef):
                found |= class_fields(reader, above.scope)
    finally:
        reader.making.discard(id(node))
    for name, bindings in scope.bindings.items():
        one = bindings[-1]
        found[name] = _bound(reader, one)
    return found


def _keywords(reader: Reader, call: ast.Call, site: Site, *, fresh: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for keyword in call.keywords:
        if fresh:
            reader.begin()
        value = reader.value(keyword.value, site)
        if keyword.arg is not None:
            found[keyword.arg] = value
        elif isinstance(value, Mapping):
            found |= cast("Mapping[str, Any]", value)
        else:
            found["**"] = Computed(keyword.value.lineno)
    return found


def _takes_bfloat16(reader: Reader, node: ast.Call, card: Hardware) -> bool:
    """What the card is said to do: Unsloth counts units alone, and tells torch to; else emulation counts as well."""
    units = any(keyword.arg == "including_emulation" for keyword in node.keywords)
    return card.bfloat16 or (card.emulated and not units and not reader.names.imports("unsloth"))


def _call(reader: Reader, node: ast.Call, site: Site) -> Any:
    name = last(node.func)
    line = node.lineno
    if name == "is_available" and dotted(reader, node.func, site).endswith("cuda.is_available"):
        return Computed(line, card=True) if reader.card is None else True  # whoever names a card has one
    if name in ASKS_CARD:
        return Computed(line, card=True) if reader.card is None else _takes_bfloat16(reader, node, reader.card)
    if name in ("parse_args", "parse_known_args"):
        if reader.names.calls_named("add_argument"):
            parsed = _command_line(reader)
            return parsed if name == "parse_args" else [parsed, Computed(line)]
        return _returned(reader, node, site)
    if name in ("parse_args_into_dataclasses", "parse_args_and_config"):
        return _dataclasses(reader, line)
    if name in typed.CLASS_PARSERS and (parsed := _parsed_class(reader, node, site)) is not None:
        return parsed
    if name in ("dict", *RECORDS) or (name == "create" and dotted(reader, node.func, site).startswith("OmegaConf")):
        found: dict[str, Any] = {}
        for argument in node.args:
            found |= reader.value(argument, site)
        found |= _keywords(reader, node, site)
        return found if name == "dict" else Record(found, name)
    if name == "vars" and len(node.args) == 1 and isinstance(one := reader.value(node.args[0], site), Record):
        return dict(one.attributes)
    if name == "field":
        said = {keyword.arg: keyword.value for keyword in node.keywords}
        made = said.get("default_factory")
        return reader.value(made.body if isinstance(made, ast.Lambda) else said.get("default"), site)
    if name in (*_CONVERT, "Path", "getattr"):
        values = [reader.value(argument, site) for argument in node.args]
        if name == "getattr" and isinstance(values[0], Symbol) and isinstance(values[1], str):
            return Symbol(f"{values[0].name}.{values[1]}")
        is_known = known(values) and len(values) == 1 and not isinstance(values[0], Symbol)
        return _CONVERT.get(name, str)(values[0]) if is_known else Computed(line)
    if name.endswith("load") and (read := loaded(reader, node, dotted(reader, node.func, site), site)) is not None:
        return read
    made = _returned(reader, node, site)
    if isinstance(made, Computed) and name[:1].isupper():  # an object of an imported class: what it was given
        return Record(_keywords(reader, node, site), dotted(reader, node.func, site))
    return made


def _returned(reader: Reader, node: ast.Call, site: Site) -> Any:
    """What a class or function of the file gives: an object with its fields, or what stands behind its one return."""
    made = reader.value(node.func, site) if isinstance(node.func, ast.Name) else None
    if not isinstance(made, Defined) or id(made.scope.node) in reader.making:
        return Computed(node.lineno)
    inner = made.scope.node
    if isinstance(inner, ast.ClassDef):
        fields = class_fields(reader, made.scope)
        positions = {name: reader.value(arg, site) for name, arg in zip(fields, node.args, strict=False)}
        return Record(fields | positions | _keywords(reader, node, site), inner.name)
    returns = reader.names.returns.get(id(inner), [])
    return reader.value(*returns[0]) if len(returns) == 1 else Computed(node.lineno)


def _dataclasses(reader: Reader, line: int) -> Any:
    """What HfArgumentParser gives: one object per class, with its defaults and with what is typed."""
    parsers = [call for name in typed.ARGUMENT_PARSERS for call in reader.names.calls_named(name)]
    if len(parsers) != 1 or len(parsers[0].node.args) != 1:
        return Computed(line)
    said = parsers[0].node.args[0]
    made = [reader.value(one, parsers[0].site) for one in (said.elts if isinstance(said, ast.Tuple) else [said])]
    return [Record(_with_flags(reader, one), "command line") for one in made]


def _parsed_class(reader: Reader, node: ast.Call, site: Site) -> Record | None:
    """The object that a parser makes of a class of the file; None for what is called alike."""
    given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "config_class")]
    made = reader.value(given[0], site) if given else None
    own = isinstance(made, Defined) and isinstance(made.scope.node, ast.ClassDef)
    return Record(_with_flags(reader, made), "command line") if own else None


def _with_flags(reader: Reader, made: Any) -> dict[str, Any]:
    """The fields of a class of arguments; of one that is imported, or built on such, all flags may be fields."""
    fields = class_fields(reader, made.scope) if isinstance(made, Defined) else {}
    closed = isinstance(made, Defined) and not cast(ast.ClassDef, made.scope.node).bases
    return fields | flags_among(reader, fields if closed else {**fields, **reader.typed})


def flags_among(reader: Reader, names: Mapping[str, Any]) -> dict[str, Any]:
    """What is typed for these names."""
    found = {name: typed.of([name], reader.typed) for name in names}
    return {name: typed.plain(said[0]) for name, said in found.items() if said is not None}


KINDS: Mapping[type[ast.AST], Callable[[Reader, Any, Site], Any]] = {
    **EXPRESSIONS, ast.Name: _name, ast.Attribute: _attribute, ast.Call: _call,
}  # fmt: skip
"""How each kind of expression is read."""
