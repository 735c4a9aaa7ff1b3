"""Tables of keys -> groups of facts: under which of its own names a format keeps each field."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from finitune.facts import Disagreement
from finitune.finding import UnreadableInput
from finitune.sources.configs.format import Keys, Settings
from finitune.sources.text import flag, kind_of, real, section, whole, word, words

Group = TypeVar("Group")
DTYPES = {
    "float16": "float16", "fp16": "float16", "half": "float16", "bfloat16": "bfloat16", "bf16": "bfloat16",
    "bfp16": "bfloat16", "float32": "float32", "fp32": "float32", "float": "float32",
}  # fmt: skip
"""How configurations spell a dtype -> how torch does."""

Read = Callable[[Settings, str, str], Any]

_READERS: Mapping[type, Read] = types.MappingProxyType({
    int: whole,
    float: real,
    bool: flag,
    str: lambda data, key, _: word(data, key),
})  # fmt: skip


def group(of: type[Group], data: Settings, file: str, keys: Keys, /, **known: Any) -> Group | None:
    """A group `of` facts with the fields that stand in `data`, and its source; None when it would say nothing.

    `known` fields are taken as they are and win. Raises UnreadableInput for a value of the wrong type.
    """
    hints = typing.get_type_hints(of)
    found = {name: first(data, file, places, hints[name]) for name, places in keys.items() if name not in known}
    said = {name: value for name, value in {**found, **known}.items() if value is not None}
    return of(**{"source": file, **said}) if said.keys() - {"source"} else None


def first(data: Settings, file: str, places: Sequence[str], hint: Any) -> Any:
    """The first of the places that holds something."""
    options = [option for option in typing.get_args(hint) if option is not type(None)] or [hint]
    for place in places:
        *path, key = place.split(".")
        inner = data
        for name in path:
            inner = section(inner, name)
        value = _value(inner, key, file, options[0])
        if value is not None:
            return value
    return None


def _value(data: Settings, key: str, file: str, kind: Any) -> Any:
    if typing.get_origin(kind) is not None:
        return words(data, key)
    return _READERS[kind](data, key, file)


def named(data: Settings, keys: Sequence[str]) -> list[str]:
    """The first text under these keys, which may be one or stand in a list; none where there is none."""
    for key in keys:
        if said := words(data, key) or word(data, key):
            return [said] if isinstance(said, str) else said[:1]
    return []


def both_halves(data: Settings, file: str, half: str = "fp16", brain: str = "bf16") -> list[Disagreement] | None:
    """The two switches of half precision, where both are on."""
    if not (first(data, file, (half,), bool) and first(data, file, (brain,), bool)):
        return None
    sources = [f"{file}: {half}", f"{file}: {brain}"]
    return [Disagreement(key="precision.both", values=["float16", "bfloat16"], sources=sources)]


def dtype_of(said: str | None) -> str | None:
    """The dtype that is meant, as torch spells it; None for a word that means none."""
    return DTYPES.get(said.removeprefix("torch.")) if said else None


def choice(data: Settings, key: str, file: str, meanings: Mapping[str, str | None]) -> str | None:
    """What the word under `key` means; the word itself where no meaning is listed, None when absent or "auto"."""
    value = data.get(key)
    if value is None or isinstance(value, bool):
        return None
    if not isinstance(value, str):
        raise UnreadableInput(f"{file}: {key}: expected a word such as {next(iter(meanings))}, found {kind_of(value)}")
    return None if value == "auto" else meanings.get(value.lower(), value)
