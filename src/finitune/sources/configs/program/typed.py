"""What is typed after the name of a program -> values, as the parser of the program makes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from finitune.sources.configs.program.names import last_name

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
