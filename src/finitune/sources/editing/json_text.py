"""Settings changed inside the text of a JSON file: order, indentation and every other character stay as they are."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """One name and its value; offsets in the text. `colon` is behind the name, `gap` behind the comma before it."""

    name: str
    gap: int
    start: int
    colon: int
    value: int
    end: int


def edited(text: str, changes: Mapping[tuple[str, ...], Any]) -> str:
    """The text with every path of `changes` set to its value; `text` must hold a JSON object.

    A new name stands behind another one of `changes` in the same object, else at its end. Raises ValueError where a
    path leads through something that is no object.
    """
    beside = {name for path in changes for name in path}
    for path, value in changes.items():
        text = _set(text, _skip(text, 0), list(path), value, beside)
    return text


def _set(text: str, at: int, path: list[str], value: Any, beside: set[str]) -> str:
    members, closing = _members(text, at)
    name, *inner = path
    held = [member for member in members if member.name == name]
    if not held:
        for key in reversed(inner):
            value = {key: value}
        return _add(text, at, closing, members, name, value, beside)
    last = held[-1]  # of a repeated name the last counts
    if not inner:
        return text[: last.value] + _spelt(value, text) + text[last.end :]
    if text[last.value] != "{":
        raise ValueError(f"{name} holds no section")
    return _set(text, last.value, inner, value, beside)


def _add(text: str, at: int, closing: int, members: list[_Member], name: str, value: Any, beside: set[str]) -> str:
    if not members:
        return f"{text[: at + 1]}{_spelt(name, text)}: {_spelt(value, text)}{text[closing:]}"
    neighbour = next((member for member in reversed(members) if member.name in beside), members[-1])
    gap = text[neighbour.gap : neighbour.start]
    colon = text[neighbour.colon : neighbour.value]
    if "\n" in gap:
        newline = "\r\n" if "\r\n" in gap else "\n"
        indent = gap.rpartition("\n")[2]
        outer = text[: closing + 1].rpartition("\n")[2].removesuffix("}")
        step = indent.removeprefix(outer) if not outer.strip() else ""
        gap = newline + indent
        spelt = json.dumps(value, ensure_ascii=text.isascii(), indent=step or "  ")
        spelt = spelt.replace("\n", newline + indent)
    else:
        gap, spelt = gap or " ", _spelt(value, text)
    return f"{text[: neighbour.end]},{gap}{_spelt(name, text)}{colon}{spelt}{text[neighbour.end :]}"


def _members(text: str, at: int) -> tuple[list[_Member], int]:
    """The members of the object that opens at `at`, and the place of its closing brace."""
    found: list[_Member] = []
    gap, at = at + 1, _skip(text, at + 1)
    while text[at] != "}":
        name, colon = _DECODER.raw_decode(text, at)
        value = _skip(text, _skip(text, colon) + 1)
        _, end = _DECODER.raw_decode(text, value)
        found.append(_Member(name=name, gap=gap, start=at, colon=colon, value=value, end=end))
        at = _skip(text, end)
        if text[at] == ",":
            gap, at = at + 1, _skip(text, at + 1)
    return found, at


def _spelt(value: Any, text: str) -> str:
    return json.dumps(value, ensure_ascii=text.isascii())


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found
    return found.end()
