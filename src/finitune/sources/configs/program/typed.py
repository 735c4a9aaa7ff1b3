"""What is typed after the name of a program -> values, as the parser of the program makes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from finitune.sources.configs.program.names import Function, Names, last_name

ARGUMENT_PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser")
"""They make objects of classes from the command line."""

FUNCTION_PARSERS = ("Fire", "cli", "CLI", "auto_cli", "run")
"""They call a function with what is typed."""

CLASS_PARSERS = ("cli", "parse", "CLI", "auto_cli")
"""They make one object of a class from what is typed: tyro, simple_parsing, pyrallis, draccus, jsonargparse."""

WORDS = {"true": True, "false": False}
CONVERT: Mapping[str, Callable[[str], Any]] = {"float": float, "int": int, "str": str, "bool": bool}
"""As argparse calls them: `type=bool` makes True of every word, "False" included."""

_NUMBER = re.compile(r"[-+]?(\d[\d_]{0,40}(\.\d{0,40})?|\.\d{1,40})([eE][-+]?\d{1,4})?")


def plain(said: Any) -> Any:
    """By its looks, as transformers, fire and their like take it: numbers, true and false, else text."""
    if isinstance(said, list):
        return [plain(one) for one in cast(list[Any], said)]
    if not isinstance(said, str):
        return said
    if said.lower() in WORDS:
        return WORDS[said.lower()]
    if _NUMBER.fullmatch(said):
        return float(said) if re.search(r"[.eE]", said) else int(said)
    return said


def option(said: Any, call: ast.Call) -> Any:
    """By what `add_argument` of argparse or `option` of click declares. Raises ValueError where its type refuses it."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    action, kind = keywords.get("action"), keywords.get("type")
    switch = action.value if isinstance(action, ast.Constant) else None
    if switch in ("store_true", "store_false"):
        return switch == "store_true"
    if switch == "store_const" or (said is True and "const" in keywords):
        const = keywords.get("const")
        return const.value if isinstance(const, ast.Constant) else said
    if isinstance(said, list):
        return [option(one, call) for one in cast(list[Any], said)]
    convert = CONVERT.get(last_name(kind)) if kind is not None else None
    if convert is not None and isinstance(said, str):
        return convert(said)
    click = last_name(call.func) == "option"  # click takes the type of the default
    return plain(said) if click or kind is not None else said


def of(names: Sequence[str], typed: Mapping[str, Any]) -> tuple[Any] | None:
    """What is typed under one of the names, or `no_` before it; None where nothing is."""
    for name in names:
        if name in typed:
            return (typed[name],)
        if f"no_{name}" in typed:
            return (False,)
    return None


def declares_flags(names: Names) -> bool:
    """Whether the file itself says what its flags mean, by argparse, click, fire or their like."""
    if any(names.calls_named(name) for name in ARGUMENT_PARSERS):
        return False
    functions = [one.node for one in names.scopes.values() if isinstance(one.node, Function)]
    return bool(names.calls_named("add_argument")) or any(takes_flags(names, one) for one in functions)


def takes_flags(names: Names, node: Function) -> bool:
    """Whether fire, tyro, typer or their like call the function with what is typed."""
    if any(last_name(one.func if isinstance(one, ast.Call) else one) == "command" for one in node.decorator_list):
        return True
    calls = [call.node for name in FUNCTION_PARSERS for call in names.calls_named(name)]
    return any(isinstance(one, ast.Name) and one.id == node.name for call in calls for one in call.args[:1])


def destinations(call: ast.Call) -> list[str]:
    """The names that a flag of a command line may have as a variable, the likeliest first."""
    said = next((k.value for k in call.keywords if k.arg == "dest"), None)
    return [said.value] if isinstance(said, ast.Constant) and isinstance(said.value, str) else spellings(call)


def spellings(call: ast.Call) -> list[str]:
    """How an option is typed, as Python spells it."""
    words = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    words.sort(key=lambda word: not word.startswith("--"))
    return [word.lstrip("-").replace("-", "_") for word in words]
