"""Tables of keys -> groups of facts: under which of its own names a format keeps each field."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from finitune.finding import UnreadableInput
from finitune.sources.text import flag, kind_of, real, section, whole, word, words

Group = TypeVar("Group")
Keys = Mapping[str, Sequence[str]]
"""Field of the group -> the keys that may hold it, the one that counts first. A dot leads into a section."""

Read = Callable[[Mapping[str, Any], str, str], Any]

_READERS: Mapping[type, Read] = types.MappingProxyType({
    int: whole,
    float: real,
    bool: flag,
    str: lambda data, key, _: word(data, key),
})  # fmt: skip


def group(of: type[Group], data: Mapping[str, Any], file: str, keys: Keys, /, **known: Any) -> Group | None:
    """A group `of` facts with the fields that stand in `data`, and its source; None when it would say nothing.

    `known` fields are taken as they are and win. Raises UnreadableInput for a value of the wrong type.
    """
    hints = typing.get_type_hints(of)
    found = {name: first(data, file, places, hints[name]) for name, places in keys.items() if name not in known}
    said = {name: value for name, value in {**found, **known}.items() if value is not None}
    return of(**{"source": file, **said}) if said.keys() - {"source"} else None


def first(data: Mapping[str, Any], file: str, places: Sequence[str], hint: Any) -> Any:
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


def _value(data: Mapping[str, Any], key: str, file: str, kind: Any) -> Any:
    if typing.get_origin(kind) is not None:
        return words(data, key)
    return _READERS[kind](data, key, file)


def choice(data: Mapping[str, Any], key: str, file: str, meanings: Mapping[str, str | None]) -> str | None:
    """What the word under `key` means; the word itself where no meaning is listed, None when absent or "auto"."""
    value = data.get(key)
    if value is None or isinstance(value, bool):
        return None
    if not isinstance(value, str):
        raise UnreadableInput(f"{file}: {key}: expected a word such as {next(iter(meanings))}, found {kind_of(value)}")
    return None if value == "auto" else meanings.get(value.lower(), value)
