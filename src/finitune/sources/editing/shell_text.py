"""Flags changed inside the text of a shell script: one word in its place, line continuations kept; nothing is run.

The reader of scripts (`shell_words`) says where each word of a launch stands. A value may be written in several places,
of which one is a variable that others use too; so whoever changes a script reads it again, and takes the first text
that came out as meant.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from finitune.finding import short_exponent
from finitune.sources.editing.shell_words import Command, Span, Word, flag_of


def edited(text: str, command: Command, name: str, value: Any, beside: Collection[str]) -> Iterator[str]:
    """Texts with the flag `name` of the command set to `value`, the likeliest place first.

    A switch without a value is taken away by False; a new flag stands behind one of `beside`, else at the end.
    """
    words = command.words
    found = [i for i, word in enumerate(words) if flag_of(word.text) == name or word.text.startswith(f"{name}=")]
    for i in reversed(found):  # of a repeated flag the last counts
        yield from _change(text, words, i, value)
    if found:
        return
    anchors = [i for i, word in enumerate(words) if flag_of(word.text) in beside]
    if anchors:
        yield _insert(text, words, anchors[-1], name, value)
    if words[-1].place[1] == command.end:
        yield _insert(text, words, len(words) - 1, name, value)
    yield f"{text[: command.end]} {_flag(words, words[-1], name, value, bare=False)}{text[command.end :]}"


def renamed(text: str, command: Command, name: str, new: str) -> str:
    """The script with the flag `name` of the command spelt `new`, with the dashes that it has. Raises ValueError."""
    words = [word for word in command.words if flag_of(word.text) == name or word.text.startswith(f"{name}=")]
    start, end = words[0].place if len(words) == 1 else (0, 0)
    spelt = next((way for way in (name, name.replace("_", "-")) if text[start:end].lstrip("-").startswith(way)), None)
    if spelt is None:
        raise ValueError(f"{name} stands in no word of its own")
    at = text.index(spelt, start)
    return text[:at] + (new.replace("_", "-") if "-" in spelt else new) + text[at + len(spelt) :]


def _change(text: str, words: Sequence[Word], at: int, value: Any) -> Iterator[str]:
    word = words[at]
    name, said, after = word.text.partition("=")
    if said:
        yield from _revalue(text, word.written(len(name) + 1), (word.place[1] - len(after), word.place[1]), value)
        return
    values = _values(words, at)
    if len(values) > 1:  # the program itself may follow the flag of its launcher
        yield from _revalue(text, values[0].written(), values[0].place, value)
    if values:
        written = values[0].written() if len(values) == 1 else None
        yield from _revalue(text, written, (values[0].place[0], values[-1].place[1]), value)
    elif value is False:
        start, end = _before_gap(text, word.place[0]), word.place[1]
        yield text[:start] + (text[end:] if start < word.place[0] else text[end:].lstrip(" \t"))
    elif value is not True:
        yield f"{text[: word.place[1]]} {_spelt(value, '')}{text[word.place[1] :]}"


def _values(words: Sequence[Word], at: int) -> list[Word]:
    """The words behind a flag, up to the next one."""
    end = next((i for i in range(at + 1, len(words)) if flag_of(words[i].text) is not None), len(words))
    return list(words[at + 1 : end])


def _before_gap(text: str, at: int) -> int:
    """Where the blanks and line continuations in front of `at` begin."""
    while at and text[at - 1] in " \t\n":
        at -= 2 if text[at - 2 : at] == "\\\n" else 1
    return at


def _revalue(text: str, written: Span | None, used: Span, value: Any) -> Iterator[str]:
    """The value where it is written, which of a variable is elsewhere, or else where it is used."""
    for start, end in dict.fromkeys((written or used, used)):
        yield text[:start] + _spelt(value, text[start:end]) + text[end:]


def _insert(text: str, words: Sequence[Word], after: int, name: str, value: Any) -> str:
    """Behind a flag and its values: on a line of its own where that flag has one, else on the same line."""
    first = next((i for i in range(after, 0, -1) if flag_of(words[i].text) is not None), 0)
    flag, values = words[first], _values(words, first)
    end = (values or [flag])[-1].place[1]
    before = text[: flag.place[0]].rpartition("\n")[2]
    continued = text[: flag.place[0]].removesuffix(before).endswith("\\\n")
    alone = not before.strip() and first > 0
    # inside quotes and brackets a line ends without a backslash
    gap = (" \\\n" if continued else "\n") + before if alone else " "
    return text[:end] + gap + _flag(words, flag, name, value, bare=not values) + text[end:]


def _flag(words: Sequence[Word], neighbour: Word, name: str, value: Any, *, bare: bool) -> str:
    flags = [word.text for word in words if flag_of(word.text)]
    if not flags and any(re.match(r"\w+=", word.text) for word in words):
        return f"{name}={_spelt(value, '')}"
    dashed = any("-" in flag.lstrip("-") for flag in flags) and not any("_" in flag for flag in flags)
    name = "--" + (name.replace("_", "-") if dashed else name)
    if value is True and bare and flag_of(neighbour.text) is not None and "=" not in neighbour.text:
        return name
    return f"{name} {_spelt(value, '')}"


def _spelt(value: Any, old: str) -> str:
    """A value as one word (a list as several), in the quotes and with the yes and no of `old`."""
    quote = old[0] if len(old) > 1 and old[0] in "'\"" and old[0] == old[-1] else ""
    bare = old.strip("'\"")
    if isinstance(value, bool):
        pairs = (("True", "False"), ("true", "false"), ("yes", "no"), ("1", "0"))
        yes, no = next((pair for pair in pairs if bare in pair), pairs[0])
        return f"{quote}{yes if value else no}{quote}"
    if isinstance(value, float):
        return f"{quote}{short_exponent(str(value))}{quote}"
    if isinstance(value, Mapping):
        return shlex.quote(json.dumps(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(shlex.quote(str(part)) for part in cast("Sequence[Any]", value))
    return f"{quote}{value}{quote}" if quote and re.fullmatch(r"[\w.+-]*", str(value)) else shlex.quote(str(value))
