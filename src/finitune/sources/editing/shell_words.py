"""The words of a shell script, with variables filled in; nothing is ever run.

Understood: comments, quotes, line continuations, `A=...`, `A+=...`, `A=(...)`, `export`, `$A`, `${A}`, `${A:-default}`,
`"${A[@]}"`, here-documents and `` `# comments` `` (left out). What only running could tell (`$(...)`, `$1`, arithmetic,
an unset variable) is UNKNOWN.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

UNKNOWN = "\0"
"""Stands in a word for text that is not known."""

MAX_VALUE = 2**16
MAX_EXPANDED = 2**22
MAX_WORDS = 100_000
"""Bounds on what variables of variables may grow to; beyond, a value is unknown and a command ends."""

_PLAIN = re.compile(r"[^\s\\'\"$`#;&|<>(){}]+")
_IN_QUOTES = re.compile(r"[^\\\"$`]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,199})(\+?)=")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
_DEFAULT = re.compile(r":?[-=]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One simple command: its words after expansion, and the line on which it begins."""

    words: list[str]
    line: int


@dataclass(slots=True, kw_only=True)
class _Word:
    """A word that is being read; splitting at unquoted variables makes several of one."""

    done: list[str] = field(default_factory=list[str])
    parts: list[str] = field(default_factory=list[str])
    size: int = 0

    @property
    def begun(self) -> bool:
        return bool(self.parts)

    def add(self, text: str) -> None:
        if self.size <= MAX_VALUE:
            self.parts.append(text)
            self.size += len(text)

    def split(self, value: str) -> None:
        """An unquoted variable: white space in its value ends words."""
        parts = value.split()
        if not parts or value[0].isspace():
            self.close()
        for i, part in enumerate(parts):
            if i:
                self.close()
            self.add(part)
        if parts and value[-1].isspace():
            self.close()

    def close(self) -> None:
        if self.parts and len(self.done) < MAX_WORDS:
            self.done.append("".join(self.parts))
        self.drop()

    def drop(self) -> None:
        self.parts, self.size = [], 0


class Script:
    """Reads a script from front to back once; its lifetime is that of the position and of the variables."""

    def __init__(self, text: str) -> None:
        text = text.replace("\r\n", "\n").replace(UNKNOWN, " ")
        self._line_ends = [found.start() for found in re.finditer("\n", text)]
        self._text = text.replace("\\\n", "  ")  # of the same length, so that places stay where they are
        self._at = 0
        self._left_to_expand = MAX_EXPANDED
        self._variables: dict[str, list[str]] = {}

    def commands(self) -> Iterator[Command]:
        """Every simple command in the order of the text, whatever branch or function it stands in."""
        word, start = _Word(), 0
        heredocs: list[str] = []
        while self._at < len(self._text):
            c = self._text[self._at]
            if not word.begun and not word.done:
                start = self._at
            if c in " \t":
                word.close()
                self._at += 1
            elif c == "#" and not word.begun:
                self._at = self._end_of_line()
            elif c in "\n;&|(){}":
                if c in "{}()" and word.begun and c != "(" and self._text[self._at - 1] not in " \t\n;":
                    word.add(c)  # a brace inside a word
                    self._at += 1
                    continue
                word.close()
                yield from self._finished(word, start)
                word = _Word()
                self._at += 1
                if c == "\n" and heredocs:
                    self._skip_heredocs(heredocs)
            elif c in "<>":
                self._redirect(word, heredocs)
            elif not word.begun and (found := _ASSIGNMENT.match(self._text, self._at)):
                self._assign(found, word)
            else:
                self._piece(word)
        word.close()
        yield from self._finished(word, start)

    def _finished(self, word: _Word, start: int) -> Iterator[Command]:
        if word.done:
            yield Command(words=word.done, line=bisect_left(self._line_ends, start) + 1)

    def _assign(self, found: re.Match[str], word: _Word) -> None:
        """`NAME=value`, also as an argument of export and before a command."""
        name, more = found.groups()
        self._at = found.end()
        value, array = _Word(), self._text.startswith("(", self._at)
        if array:
            self._at += 1
            while self._at < len(self._text) and self._text[self._at] != ")":
                c = self._text[self._at]
                if c.isspace():
                    value.close()
                    self._at += 1
                elif c == "#" and not value.begun:
                    self._at = self._end_of_line()
                else:
                    self._piece(value)
            self._at += 1
        else:
            while self._at < len(self._text) and self._text[self._at] not in " \t\n;&|()<>":
                self._piece(value, split=False)
        value.close()
        if word.done and word.done[0] not in ("export", "declare", "local", "readonly", "typeset", "env"):
            # not an assignment at all but an argument such as key=value
            word.add(f"{name}{more}={' '.join(value.done)}")
            word.close()
            return
        old = self._variables.get(name, []) if more else []
        joined = [*old, *value.done] if array or not old else [old[0] + "".join(value.done), *old[1:]]
        fits = sum(map(len, joined)) <= MAX_VALUE
        self._variables[name] = joined if fits else [UNKNOWN]

    def _piece(self, word: _Word, *, split: bool = True) -> None:
        """One stretch of a word: plain text, a quoted part or a variable."""
        text, c = self._text, self._text[self._at]
        if c == "'":
            end = text.find("'", self._at + 1)
            end = len(text) if end < 0 else end
            word.add(text[self._at + 1 : end])
            self._at = end + 1
        elif c == '"':
            self._at += 1
            self._quoted(word)
        elif c == "\\":
            word.add(text[self._at + 1 : self._at + 2])
            self._at += 2
        elif c in "$`":
            values, whole = self._variable()
            if not split or whole:
                word.add(" ".join(values))
            else:
                word.split(" ".join(values))
        elif found := _PLAIN.match(text, self._at):
            word.add(found[0])
            self._at = found.end()
        else:
            word.add(c)
            self._at += 1

    def _quoted(self, word: _Word) -> None:
        """Up to the closing quote; `"${A[@]}"` gives the words of A one by one."""
        text = self._text
        word.add("")
        while self._at < len(text) and text[self._at] != '"':
            c = text[self._at]
            if c == "\\":
                word.add(text[self._at + 1 : self._at + 2])
                self._at += 2
            elif c in "$`":
                array = "[@]}" in text[self._at : self._at + 80].split('"', 1)[0]
                values, _ = self._variable()
                for i, value in enumerate(values if array else [" ".join(values)]):
                    if i:
                        word.close()
                    word.add(value)
            else:
                found = _IN_QUOTES.match(text, self._at)
                word.add(found[0] if found else c)
                self._at = found.end() if found else self._at + 1
        self._at += 1

    def _variable(self) -> tuple[list[str], bool]:
        """The value at a `$` or a backtick, and whether it is a single word whatever it holds."""
        values, whole = self._value()
        self._left_to_expand -= sum(map(len, values))
        return ([UNKNOWN], True) if self._left_to_expand < 0 else (values, whole)

    def _value(self) -> tuple[list[str], bool]:
        text = self._text
        if text[self._at] == "`":
            start, end = self._at + 1, text.find("`", self._at + 1)
            end = len(text) if end < 0 else end
            self._at = end + 1
            comment = text[start:end].lstrip().startswith("#") and "\n" not in text[start:end]
            return ([], False) if comment else ([UNKNOWN], True)
        self._at += 1
        following = text[self._at : self._at + 1]
        if following == "(":
            self._at = self._closing("(", ")")
            return [UNKNOWN], True
        if following == "{":
            start, self._at = self._at + 1, self._closing("{", "}")
            return self._braced(text[start : self._at - 1]), False
        if found := _NAME.match(text, self._at):
            self._at = found.end()
            return self._variables.get(found[0], [UNKNOWN]), False
        if following and following in "0123456789@*#?$!-":
            self._at += 1
            return [UNKNOWN], True
        return ["$"], True

    def _braced(self, inside: str) -> list[str]:
        name = _NAME.match(inside)
        rest = inside[name.end() :] if name else inside
        value = self._variables.get(name[0]) if name else None
        if rest in ("", "[@]", "[*]"):
            return [UNKNOWN] if value is None else value
        operator = _DEFAULT.match(rest)
        if operator is None or (name is None and not re.match(r"\d+:?-", inside)):
            return self._default_of_position(inside)
        if value and (value != [""] or not operator[0].startswith(":")):
            return value
        return [_without_quotes(rest[operator.end() :])]

    def _default_of_position(self, inside: str) -> list[str]:
        """`${1:-default}`: without arguments it is the default."""
        found = re.match(r"\d+:?[-=]", inside)
        return [_without_quotes(inside[found.end() :])] if found else [UNKNOWN]

    def _closing(self, opening: str, closing: str) -> int:
        """Behind the bracket that closes the one here; the end of the text when there is none."""
        depth = 0
        for found in re.compile(f"[{re.escape(opening + closing)}]").finditer(self._text, self._at):
            depth += 1 if found[0] == opening else -1
            if depth == 0:
                return found.end()
        return len(self._text) + 1

    def _redirect(self, word: _Word, heredocs: list[str]) -> None:
        """`> file`, `2>&1`, `<<EOF`: no words of the command. A lone descriptor before it is none either."""
        if found := _HEREDOC.match(self._text, self._at):
            heredocs.append(found[2])
            self._at = found.end()
            return
        if "".join(word.parts).isdigit():
            word.drop()
        word.close()
        found = re.compile(r"[<>&|]+\s*").match(self._text, self._at)
        self._at = found.end() if found else self._at + 1
        target = _Word()
        while self._at < len(self._text) and self._text[self._at] not in " \t\n;&|()<>":
            self._piece(target)

    def _skip_heredocs(self, heredocs: list[str]) -> None:
        for marker in heredocs:
            found = re.compile(rf"^[ \t]*{re.escape(marker)}[ \t]*$", re.MULTILINE).search(self._text, self._at)
            self._at = found.end() if found else len(self._text)
        heredocs.clear()

    def _end_of_line(self) -> int:
        end = self._text.find("\n", self._at)
        return len(self._text) if end < 0 else end


def _without_quotes(text: str) -> str:
    """A default as it is written; one that holds variables of its own is not known."""
    return UNKNOWN if "$" in text or "`" in text else text.strip("\"'")
