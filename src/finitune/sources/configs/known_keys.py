"""Keys that a format does not have, and what may have been meant.

The names of each format lie in `fields/<format>.txt`, kept by `make fields`: a first line with the release they come
from, a note, then one key per line, dotted inside a section; ` = a | b` lists the only values that there are. A
section without dotted names is not looked into.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from finitune.facts import UnknownKey
from finitune.sources.text import short

SURE = 0.85
"""Likeness from which one word of an unknown key is taken for a misspelt one where programs may add keys of theirs."""

LIKE = 0.75
SUGGESTIONS = 3
LONGEST = 80
"""No field has a longer name; comparing texts takes time that grows with the square of their length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """What one format knows. `sections` are the keys that are looked into."""

    release: str
    names: frozenset[str]
    choices: Mapping[str, Sequence[str]]
    sections: frozenset[str]


@cache
def fields_of(name: str) -> Fields | None:
    """The fields of the format `name`; None for a format without a list."""
    path = Path(__file__).parent / "fields" / f"{name}.txt"
    if not path.exists():
        return None
    release, *rest = path.read_text(encoding="ascii").splitlines()
    lines = [line.partition(" = ") for line in rest if not line.startswith("#")]
    names = frozenset(key for key, _, _ in lines)
    return Fields(
        release=release.removeprefix("# "),
        names=names,
        choices={key: values.split(" | ") for key, _, values in lines if values},
        sections=frozenset(name.rsplit(".", 1)[0] for name in names if "." in name),
    )


def unknown(name: str, data: Mapping[str, Any], file: str, *, open_ended: bool) -> Iterator[UnknownKey]:
    """What in `data` the format `name` does not know.

    Where a program may add keys of its own (`open_ended`), only keys that look misspelt are named. JSON has no
    comments, so keys that begin with other than a letter, or are named so, are taken for some.
    """
    fields = fields_of(name)
    if fields is None:
        return
    for key, value in _flat(data, fields.sections):
        if key in fields.choices and (isinstance(value, str) and value != "auto") and value not in fields.choices[key]:
            near = _nearest(value, fields.choices[key], LIKE)
            yield UnknownKey(file=file, key=key, value=short(value), near=near, release=fields.release)
        leaf = key.rpartition(".")[2]
        if key not in fields.names and leaf[:1].isalpha() and not leaf.startswith("comment"):
            near = misspelt(key, fields) if open_ended else _like(key, fields, LIKE)
            if near or not open_ended:
                yield UnknownKey(file=file, key=short(key), near=near, release=fields.release)


def misspelt(key: str, fields: Fields) -> list[str]:
    """Fields that differ from `key` by one slip, a letter changed, left out, doubled or swapped, or by one odd word.

    A key made of words that any format has in its keys or values is one of the program's own, however near.
    """
    words = key.rpartition(".")[2].lower().split("_")
    if len(key) > LONGEST or all(word in _words() or word.removesuffix("s") in _words() for word in words):
        return []
    slips = [name for name in fields.names if len(name) > 3 and _one_slip(key, name)]
    return sorted(slips) or sorted(name for name in fields.names if _one_odd_word(key, name))[:SUGGESTIONS]


@cache
def _words() -> frozenset[str]:
    """The words of all keys and values of all formats."""
    lists = (fields_of(path.stem) for path in (Path(__file__).parent / "fields").glob("*.txt"))
    names = [name for fields in lists if fields for name in (*fields.names, *itertools.chain(*fields.choices.values()))]
    return frozenset(word for name in names for word in name.lower().replace(".", "_").split("_"))


def _one_odd_word(one: str, other: str) -> bool:
    a, b = one.split("_"), other.split("_")
    odd = [pair for pair in zip(a, b, strict=False) if pair[0] != pair[1]]
    if len(a) != len(b) or len(odd) != 1:
        return False
    ((mine, known),) = odd
    return difflib.SequenceMatcher(None, mine, known).ratio() >= SURE


def _like(key: str, fields: Fields, cutoff: float) -> list[str]:
    section, dot, leaf = key.rpartition(".")
    siblings = sorted(name[len(section + dot) :] for name in fields.names if name.rpartition(".")[0] == section)
    return [f"{section}{dot}{name}" for name in _nearest(leaf, siblings, cutoff)]


def _nearest(word: str, known: Sequence[str], cutoff: float) -> list[str]:
    """Those that are one slip away, else those that are alike."""
    if len(word) > LONGEST:
        return []
    slips = [name for name in known if _one_slip(word, name)]
    return slips[:SUGGESTIONS] or difflib.get_close_matches(word, known, SUGGESTIONS, cutoff)


def _one_slip(one: str, other: str) -> bool:
    if abs(len(one) - len(other)) > 1:
        return False
    start = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    a, b = one[start:], other[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[:2][::-1] and a[2:] == b[2:])


def _flat(data: Mapping[str, Any], sections: frozenset[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        key = f"{prefix}{name}"
        yield key, value
        if key in sections and isinstance(value, Mapping):
            inner = cast(Mapping[Any, Any], value)
            yield from _flat({str(k): v for k, v in inner.items()}, sections, f"{key}.")
