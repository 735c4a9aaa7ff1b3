"""The commands of a shell script, their words with variables filled in, and where each stands; nothing is ever run.

Understood: comments, quotes, line continuations, `A=...`, `A+=...`, `A=(...)`, `export`, `$A`, `${A}`, `${A:-default}`,
`"${A[@]}"`, `read A <<EOF`, other here-documents and `` `# comments` `` (left out). What only running could tell
(`$(...)`, `$1`, arithmetic, an unset variable) is UNKNOWN.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tree_sitter import Node

from finitune.sources.editing.syntax import parsed

UNKNOWN = "\0"
"""Stands in a word for text that is not known."""

MAX_VALUE = 2**16
MAX_EXPANDED = 2**22
MAX_WORDS = 100_000
"""Bounds on what variables of variables may grow to; beyond, a value is unknown and a command ends."""

Span = tuple[int, int]

_NUMBER = re.compile(r"-(\d|\.\d)")
_GAP = re.compile(r"(?:\s|\\\n)*")
_SPACES = re.compile(r"(\s+)")
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)
_COMMENT = re.compile(r"`#[^`\n]*`")
_BLANK = re.compile(r"(?<=[\s=])<([A-Za-z_]\w*)>(?=\s)")
"""What a reader is to fill in, such as `<port>`, is as unknown as a variable that nobody sets."""
_BRACED = re.compile(r"\$\{(\w*)(?:\[[@*]\])?(?:(:?[-=])(.*))?\}", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Part of a word: its text, where it is used, and where it is written, which of a variable is another place."""

    text: str
    used: Span
    written: Span

    @property
    def exact(self) -> bool:
        """Whether it is written as it reads, character by character."""
        return len(self.text) == self.written[1] - self.written[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word after expansion; `place` is where it stands as a word of its own."""

    pieces: Sequence[Piece]
    place: Span

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    def written(self, start: int = 0) -> Span | None:
        """Where its text from character `start` on is written; None where that is in more than one place."""
        last = self.pieces[-1]
        start -= len(self.text) - len(last.text)
        return (last.written[0] + start, last.written[1]) if start == 0 or (start > 0 and last.exact) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One simple command: its words, the line on which it begins, and where its last word ends."""

    words: Sequence[Word]
    line: int
    end: int


@dataclass(slots=True, kw_only=True)
class Script:
    """Reads a script from front to back once; its lifetime is that of the variables."""

    text: str
    _tree: Node = field(init=False)
    _variables: dict[str, list[Word]] = field(default_factory=dict[str, list[Word]])
    _left_to_expand: int = MAX_EXPANDED

    def __post_init__(self) -> None:
        text = self.text.replace("\r\n", "\n").replace(UNKNOWN, " ")
        self.text = _COMMENT.sub(lambda found: " " * len(found[0]), text)
        self._tree = parsed(_BLANK.sub(r"$\1_", self.text), "bash")

    def commands(self) -> Iterator[Command]:
        """Every simple command in the order of the text, whatever branch or function it stands in."""
        waiting = [self._tree]
        while waiting:
            node = waiting.pop()
            if node.type == "redirected_statement" and node.children[0].type == "command":
                self._read(node)
                yield from self._command(node.children[0], list(_after_redirects(node)))
            elif node.type == "command":
                yield from self._command(node, [])
            elif node.type == "variable_assignment":
                self._assign(node)
            elif node.type not in ("heredoc_body", "command_substitution", "process_substitution", "test_command"):
                if node.type == "for_statement" and (name := node.child_by_field_name("variable")):
                    self._variables.pop(self._of(name), None)
                waiting += reversed(node.children)

    def _command(self, node: Node, more: Sequence[Node]) -> Iterator[Command]:
        words: list[Word] = []
        line, end = node.start_point.row + 1, node.start_byte
        for child in [*node.children, *more]:
            if child.type == "variable_assignment":
                self._assign(child)
            elif child.type.endswith("_redirect") or child.type == "comment" or len(words) > MAX_WORDS:
                continue
            elif words and self._place(child)[0] == end:  # the grammar loses `$` in `$A/$B/c`
                words[-1], end = self._unknown(child), child.end_byte
            else:
                line = line if words else child.start_point.row + 1
                words += self._words(child.children[0] if child.type == "command_name" else child)
                end = child.end_byte
        if words:
            yield Command(words=words, line=line, end=end)

    def _read(self, node: Node) -> None:
        """`read -r -d '' NAME <<EOF`: the variable is the here-document."""
        name = node.children[0].children[-1]
        body = next((one for part in node.children for one in part.children if one.type == "heredoc_body"), None)
        if body is None or not self._of(node.children[0]).startswith("read ") or name.type != "word":
            return
        pieces: list[Piece] = []
        start, end = body.start_byte, body.end_byte
        for child in [child for child in body.children if child.type in _EXPANSIONS]:
            pieces += self._literal(start, self._place(child)[0])
            pieces += [piece for piece in self._pieces(child, quoted=True) if piece]
            start = child.end_byte
        pieces += self._literal(start, end)
        if pieces and sum(len(piece.text) for piece in pieces) <= MAX_VALUE:
            self._variables[self._of(name)] = [Word(pieces=pieces, place=(body.start_byte, end))]

    def _assign(self, node: Node) -> None:
        """`NAME=value`, also as an argument of export and before a command."""
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None or name.type != "variable_name":
            return
        old = self._variables.get(self._of(name), []) if "+=" in self.text[name.end_byte : name.end_byte + 2] else []
        if value is not None and value.type == "array":
            words = [*old, *(word for child in value.named_children for word in self._words(child))]
        else:
            pieces = [piece for piece in self._pieces(value, quoted=True) if piece] if value else []
            place = self._place(value) if value else (node.end_byte, node.end_byte)
            pieces = [*(old[0].pieces if old else ()), *pieces] or [Piece(text="", used=place, written=place)]
            words = [Word(pieces=pieces, place=place), *old[1:]]
        fits = sum(len(word.text) for word in words) <= MAX_VALUE
        self._variables[self._of(name)] = words if fits else [self._unknown(node)]

    def _words(self, node: Node) -> list[Word]:
        """The words that an argument stands for: several where a variable holds white space, or an array is meant."""
        found: list[list[Piece]] = [[]]
        for piece in self._pieces(node, quoted=False) if node.type != "comment" else ():
            if piece is None:  # a word ends
                found.append([])
            else:
                found[-1].append(piece)
        kept = [pieces for pieces in found if pieces]
        if len(kept) == 1:
            return [Word(pieces=kept[0], place=self._place(node))]
        return [Word(pieces=pieces, place=(pieces[0].used[0], pieces[-1].used[1])) for pieces in kept]

    def _pieces(self, node: Node, *, quoted: bool) -> Iterator[Piece | None]:
        """What a node stands for; None where a word ends."""
        start, end = self._place(node)
        match node.type:
            case "concatenation":
                for child in node.children:
                    yield from self._pieces(child, quoted=quoted)
            case "string":
                start += 1
                for child in [child for child in node.children if child.type in _EXPANSIONS]:
                    if self._of(child).startswith("<"):  # in quotes nothing is to be filled in: `<think>`
                        continue
                    yield from self._literal(start, self._place(child)[0])
                    yield from self._pieces(child, quoted=True)
                    start = child.end_byte
                yield from self._literal(start, end - 1, always=start == node.start_byte + 1)
            case "raw_string":
                yield Piece(text=self.text[start + 1 : end - 1], used=(start, end), written=(start + 1, end - 1))
            case "simple_expansion" | "expansion":
                yield from self._variable(node, quoted=quoted)
            case "command_substitution" | "arithmetic_expansion" | "process_substitution":
                yield self._unknown(node).pieces[0]
            case _:
                yield from self._literal(start, end)

    def _literal(self, start: int, end: int, *, always: bool = False) -> Iterator[Piece]:
        if start < end or always:
            text = _ESCAPED.sub(r"\1", self.text[start:end].replace("\\\n", "  "))
            yield Piece(text=text, used=(start, end), written=(start, end))

    def _variable(self, node: Node, *, quoted: bool) -> Iterator[Piece | None]:
        """The value of a variable: one word in quotes, else as many as it has; `"${A[@]}"` gives the words of A."""
        values = self._values(node)
        self._left_to_expand -= 1 + sum(len(value.text) for value in values)
        if self._left_to_expand < 0:
            values = [self._unknown(node)]
        array, place = "[@]}" in self._of(node), self._place(node)
        for i, value in enumerate(values):
            if i:
                yield None if array or not quoted else Piece(text=" ", used=place, written=place)
            if array:
                yield from (dataclasses.replace(piece, used=value.place) for piece in value.pieces)
            elif len(value.pieces) == 1 and value.text and not _SPACES.search(value.text):
                yield dataclasses.replace(value.pieces[0], used=place)
            else:  # words that stand where the variable is set
                yield from value.pieces if quoted else (part for piece in value.pieces for part in _split(piece))

    def _values(self, node: Node) -> list[Word]:
        text = self._of(node)
        found = _BRACED.fullmatch(text)
        if found is None:
            return self._variables.get(text[1:], [self._unknown(node)])
        name, operator, default = found.groups()
        value = self._variables.get(name)
        if operator is None or (value and (value[0].text or len(value) > 1 or not operator.startswith(":"))):
            return [self._unknown(node)] if value is None else value
        if "$" in default or "`" in default:
            return [self._unknown(node)]
        bare = default.strip("\"'")
        start = self._place(node)[0] + found.start(3) + len(default) - len(default.lstrip("\"'"))
        span = (start, start + len(bare))
        return [Word(pieces=[Piece(text=bare, used=span, written=span)], place=span)]

    def _unknown(self, node: Node) -> Word:
        place = self._place(node)
        return Word(pieces=[Piece(text=UNKNOWN, used=place, written=place)], place=place)

    def _of(self, node: Node) -> str:
        start, end = self._place(node)
        return self.text[start:end]

    def _place(self, node: Node) -> Span:
        """Without the gap before it, which the grammar counts to a variable inside quotes."""
        gap = _GAP.match(self.text, node.start_byte)
        return (gap.end() if gap else node.start_byte), node.end_byte


_EXPANSIONS = ("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion")


def _split(piece: Piece) -> Iterator[Piece | None]:
    """An unquoted variable: white space in its value ends words."""
    at = piece.written[0]
    for part in _SPACES.split(piece.text):
        if part.isspace():
            yield None
        elif part:
            written = (at, at + len(part)) if piece.exact else piece.written
            yield Piece(text=part, used=written if piece.used == piece.written else piece.used, written=written)
        at += len(part)


def _after_redirects(statement: Node) -> Iterator[Node]:
    """Arguments that stand behind a redirection."""
    for redirect in statement.children[1:]:
        if redirect.type == "heredoc_redirect":
            yield from redirect.children_by_field_name("argument")
        elif redirect.type == "file_redirect":
            yield from redirect.children_by_field_name("destination")[1:]


def flag_of(word: str) -> str | None:
    """The name of a flag as Python spells it; None for a word that is none."""
    if not word.startswith("-") or _NUMBER.match(word) or not word.strip("-"):
        return None
    return word.lstrip("-").partition("=")[0].replace("-", "_")
