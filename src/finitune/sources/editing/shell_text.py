"""Flags changed inside the text of a shell script: one word on its line, line continuations kept; nothing is run.

The words are told apart roughly (the reader of scripts is `shell_words`); whoever changes a script reads it again
afterwards and refuses what came out otherwise than meant. So several places are offered, the likeliest first.
"""

from __future__ import annotations

import json
import re
import shlex
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

_LEXEME = re.compile(
    r"(?P<space>(?:[ \t]|\\\n)+)"
    r"|(?P<comment>\#[^\n]*)"
    r"|(?P<redirect>\d*[<>]{1,3}&?[ \t]*[^\s;&|()<>]*|&>>?[ \t]*[^\s;&|()<>]*)"
    r"|(?P<end>[\n;&|()]+)"
    r"|(?P<word>(?:'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|\$\{[^}\n]*\}|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|[^\s;&|()<>'\"\\`]|[<>'\"\\`])+)",
    re.DOTALL,
)
_VARIABLE = re.compile(r"\"?\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))\"?")
_NUMBER = re.compile(r"-(\d|\.\d)")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Word:
    start: int
    end: int
    text: str

    @property
    def flag(self) -> str | None:
        """The name of a flag as readers spell it; None for other words."""
        if not self.text.startswith("-") or _NUMBER.match(self.text) or not self.text.strip("-"):
            return None
        return self.text.lstrip("-").partition("=")[0].replace("-", "_")


_Command = list[_Word]


def edited(text: str, line: int, name: str, value: Any, beside: set[str]) -> Iterator[str]:
    """Texts with the flag `name` of the command on `line` (from 1) set to `value`, the likeliest place first.

    A switch without a value is taken away by False; a new flag stands behind one of `beside`, else at the end.
    """
    commands = _commands(text)
    own = _at_line(text, commands, line)
    places = [(command, i) for command in own for i in range(len(command) - 1, -1, -1)]
    places += [(command, i) for command in commands if command not in own for i in range(len(command))]
    found = [(command, i) for command, i in places if _names(command[i], name)]
    for command, i in found:
        yield from _change(text, command, i, value)
    if found or value is False:
        return
    for command in [*own, *commands]:
        anchors = [i for i, word in enumerate(command) if word.flag in beside]
        if anchors:
            yield _insert(text, command, anchors[-1], name, value)
    for command in own:
        yield _insert(text, command, len(command) - 1, name, value)


def _commands(text: str) -> list[_Command]:
    """The words of every command; what stands in quotes or brackets, such as ARGS="--a 1", is one of its own."""
    found: list[_Command] = []
    command: _Command = []
    for lexeme in _LEXEME.finditer(text):
        if lexeme.lastgroup == "end":
            found.append(command)
            command = []
        elif lexeme.lastgroup == "word":
            word = _Word(start=lexeme.start(), end=lexeme.end(), text=lexeme[0])
            command.append(word)
            found += _quoted(word)
    found.append(command)
    return [command for command in found if command]


def _quoted(word: _Word) -> Iterator[_Command]:
    """The flags inside NAME="--a 1 --b"."""
    inside = re.fullmatch(r"\w+\+?=(['\"])(.*)\1", word.text, re.DOTALL)
    if inside and "-" in inside[2]:
        start = word.start + inside.start(2)
        parts = re.finditer(r"(?:[^\s\\]|\\(?!\n))+", inside[2])
        yield [_Word(start=start + p.start(), end=start + p.end(), text=p[0]) for p in parts]


def _at_line(text: str, commands: Sequence[_Command], line: int) -> list[_Command]:
    """The commands whose words cover the line."""
    ends = [found.start() for found in re.finditer("\n", text)]
    return [
        command
        for command in commands
        if bisect_left(ends, command[0].start) < line <= bisect_left(ends, command[-1].end) + 1
        and not text.endswith(('"', "'"), 0, command[0].start)
    ]


def _names(word: _Word, name: str) -> bool:
    return word.flag == name or word.text.startswith(f"{name}=")


def _change(text: str, command: _Command, at: int, value: Any) -> Iterator[str]:
    word = command[at]
    _, said, after = word.text.partition("=")
    if said:
        yield from _revalue(text, word.end - len(after), word.end, value)
        return
    values = list[_Word]()
    for following in command[at + 1 :]:
        if following.flag is not None:
            break
        values.append(following)
    if len(values) > 1:  # the program itself may follow the flag of its launcher
        yield from _revalue(text, values[0].start, values[0].end, value)
    if values:
        yield from _revalue(text, values[0].start, values[-1].end, value)
    elif value is False:
        start = _before_gap(text, word.start)
        rest = text[word.end :]
        yield text[:start] + (rest if start < word.start else rest.lstrip(" \t"))
    elif value is not True:
        yield f"{text[: word.end]} {_spelt(value, '')}{text[word.end :]}"


def _before_gap(text: str, at: int) -> int:
    """Where the blanks and line continuations in front of `at` begin."""
    while at and text[at - 1] in " \t\n":
        at -= 2 if text[at - 2 : at] == "\\\n" else 1
    return at


def _revalue(text: str, start: int, end: int, value: Any) -> Iterator[str]:
    """The value itself, or where it is a variable the place from which the variable has it."""
    old = text[start:end]
    variable = _VARIABLE.fullmatch(old)
    if variable and variable[2] is not None:
        inside = start + variable.start(2)
        yield text[:inside] + _spelt(value, variable[2]) + text[inside + len(variable[2]) :]
    name = variable and (variable[1] or variable[3])
    if name and len(re.findall(rf"\$\{{?{name}\b", text)) == 1:
        for given in re.finditer(rf"^[ \t]*(?:export[ \t]+)?{name}=([^\s;&|#$`(]+)", text, re.MULTILINE):
            yield text[: given.start(1)] + _spelt(value, given[1]) + text[given.end(1) :]
    yield text[:start] + _spelt(value, old) + text[end:]


def _insert(text: str, command: _Command, after: int, name: str, value: Any) -> str:
    """Behind a flag and its values: on a line of its own where that flag has one, else on the same line."""
    first = after
    while first > 0 and command[first].flag is None:
        first -= 1
    last = after
    while last + 1 < len(command) and command[last + 1].flag is None:
        last += 1
    flag, end = command[first], command[last].end
    before = text[: flag.start].rpartition("\n")[2]
    continued = text[: flag.start].removesuffix(before).endswith("\\\n")
    alone = not before.strip() and first > 0
    # inside quotes and brackets a line ends without a backslash
    gap = (" \\\n" if continued else "\n") + before if alone else " "
    return text[:end] + gap + _flag(command, flag, name, value, bare=first == last) + text[end:]


def _flag(command: _Command, neighbour: _Word, name: str, value: Any, *, bare: bool) -> str:
    flags = [word.text for word in command if word.flag]
    if not flags and any(re.match(r"\w+=", word.text) for word in command):
        return f"{name}={_spelt(value, '')}"
    dashed = any("-" in flag.lstrip("-") for flag in flags) and not any("_" in flag for flag in flags)
    name = "--" + (name.replace("_", "-") if dashed else name)
    if value is True and bare and neighbour.flag is not None and "=" not in neighbour.text:
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
    if isinstance(value, Mapping):
        return shlex.quote(json.dumps(value))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(shlex.quote(str(part)) for part in cast("Sequence[Any]", value))
    return f"{quote}{value}{quote}" if quote and re.fullmatch(r"[\w.+-]*", str(value)) else shlex.quote(str(value))
