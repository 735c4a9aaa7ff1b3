"""Lines that differ in their numbers alone are read at once: a log may consist of them.

The formats read the first lines of a shape one by one, and from these follows which number of a line became which
number of its row; the lines below are then read by one expression. A format says `alike=True` of a row when the words
of a line alone decide how it is read, whatever the numbers in it; more than this it need not know.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence

import numpy as np

from finitune.sources.logs.attempt import Heard, Notes, number_in

LEARNED_FROM = 3
"""So many lines must agree on what the numbers of their shape are."""
MOST_SHAPES, MOST_TRIED = 32, 256
LONGEST = 1000
"""Bytes of a line that has a shape."""
SAME_START = 4
"""Bytes that a line has in common with the next before it is looked at any closer."""
SMALLEST, LARGEST = 2 * 2**10, 32 * 2**10
"""Bytes that are read at once: few at first, as the run may end."""

_STEADY = rb"(?:[eE]poch[ :=]{0,20}|[rR]ank ?|(?<=/))\d{1,12}"
_DRAWN = rb" {0,3}\d{1,3}%\|[^|\r\n]{0,300}\|"
_CLOCK = rb"\[\d{1,4}:[\d:]{2,9}<[\d:?]{1,12}, {1,4}[\d.?]{1,9}(?:it/s|s/it)"
_FRACTION = rb"\d{1,18}[.e][\d.e+-]{1,25}"
_SHARED, _FRACTIONS = re.compile(rb"[\d.e+-]"), ("field", "fraction")
"""What stands in fractions, and follows one only where that is too long."""
_LOST = rb"nan|inf|NaN|Infinity"
_KINDS = {
    "steady": _STEADY, "drawn": _DRAWN, "clock": _CLOCK, "field": rb"-?(?:%b|%b)" % (_FRACTION, _LOST),
    "fraction": _FRACTION, "whole": rb"\d{1,18}",
}  # fmt: skip
"""What may differ between lines of a shape, and how. `steady` may not within a run: it changes what the others mean.
A number that was lost is one in a record only; elsewhere it is a word."""
_TOKEN = re.compile(
    b"|".join(
        rb"(?P<%b>%b%b)" % (kind.encode(), b"(?:(?<=['\"]: )|(?<=['\"]: ['\"]))" if kind == "field" else b"", pattern)
        for kind, pattern in _KINDS.items()
    )
)


def may_follow(data: bytes, begin: int, end: int) -> bool:
    """Whether the line below that from `begin` to `end` begins as it does."""
    return end - begin <= LONGEST and data.startswith(data[begin : begin + SAME_START], end + 1)


class Shapes:
    """The shapes of the lines of one file, and what was learned of each."""

    def __init__(self) -> None:
        self._shapes: list[_Shape] = []
        self._tried = 0

    def read_on(self, data: bytes, begin: int, end: int, line: int, notes: Notes, feed: bytes = b"\n") -> int:
        """After the line from `begin` to `end` was read: read those like it below, and return where they end.

        Each ends with `feed`. The last of a run is left to its format, as a terminal may have wrapped it.
        """
        at = end + 1
        if len(notes.heard) != 1:
            return end
        shape = self._shape(data, begin, end, feed, notes.rank)
        if shape is None or not shape.learned(data, begin, notes):
            return end
        while (stop := data.rfind(feed, at, at + shape.window) + 1) > at:
            found = shape.several.findall(data, at, stop)
            if len(found) != data.count(feed, at, stop):
                found, stop = _unbroken(shape.several, data, at, stop)
            if feed == b"\n":
                found = found[:-1]
            read = shape.note(found, line, notes)
            line += read if feed == b"\n" else 0
            if not read or read < len(found):
                shape.window = max(shape.window // 2, SMALLEST)
                for _ in range(read):
                    end = data.find(feed, end + 1)
                break
            end = data.rfind(feed, at, stop - 1) if feed == b"\n" else stop - 1
            at, shape.window = end + 1, min(2 * shape.window, LARGEST)
        return end

    def _shape(self, data: bytes, begin: int, end: int, feed: bytes, rank: str) -> _Shape | None:
        """That of the line and the next; None where they have none in common, or there are too many."""
        for shape in self._shapes:
            if shape.feed == feed and (found := shape.whole.match(data, begin)) and found.end() == end + 1:
                break
        else:
            text = data[begin:end].removesuffix(b"\r")
            tokens = _tokens(text, text.find(b":") if rank else 0)  # the rank is a word
            if not tokens or len(self._shapes) == MOST_SHAPES or self._tried == MOST_TRIED:
                return None
            self._tried += 1
            shape = _Shape(text, tokens, feed)
            if shape.whole.match(data, end + 1):
                self._shapes.append(shape)
        return shape if shape.whole.match(data, end + 1) else None


def _tokens(text: bytes, begin: int) -> list[tuple[str, int, int]]:
    """Kind, begin and end of what may differ; none where it is in doubt which characters belong to which.

    An expression would try every way to share them.
    """
    tokens = [(found.lastgroup or "", *found.span()) for found in _TOKEN.finditer(text, begin)]
    begins = {begin for _, begin, _ in tokens}
    shared = any(end in begins or (kind in _FRACTIONS and _SHARED.match(text, end)) for kind, _, end in tokens)
    return [] if shared else tokens


def _unbroken(pattern: re.Pattern[bytes], data: bytes, at: int, stop: int) -> tuple[list[tuple[bytes, ...]], int]:
    """What the pattern finds on successive lines, and where the first other line begins."""
    out = list[tuple[bytes, ...]]()
    while found := pattern.match(data, at, stop):
        out.append(found.groups())
        at = found.end()
    return out, at


class _Shape:
    """The words of a line with its numbers left open, and what these are."""

    def __init__(self, text: bytes, tokens: Sequence[tuple[str, int, int]], feed: bytes) -> None:
        self.feed = feed
        self._text = text
        self._tokens = tokens
        self._steady = self._of_kind("steady")
        self._kept = list(range(len(self._tokens)))
        self.whole = self.several = self._expression()
        self.window = SMALLEST
        self._samples = 0
        self._heard: Heard | None = None
        self._told: list[tuple[str, str]] = []
        self._words: list[bytes] = []
        """Of the line that was read last: its row, what else it said, and its steady tokens."""
        self._holds: dict[str, set[int]] = {}
        """Tokens in which each number of the row may stand."""
        self._ahead: dict[int, int] = {}
        """Tokens that may count the steps, and how far the step is ahead of each."""

    def _of_kind(self, *kinds: str) -> list[int]:
        return [index for index, (kind, _, _) in enumerate(self._tokens) if kind in kinds]

    def _expression(self) -> re.Pattern[bytes]:
        """A line of this shape, with a group for each token that is kept, and an empty one."""
        parts, at = list[bytes](), 0
        for index, (kind, begin, end) in enumerate(self._tokens):
            group = rb"(%b)" if index in self._kept else rb"(?:%b)"
            parts += [re.escape(self._text[at:begin]), group % _KINDS[kind]]
            at = end
        parts += [re.escape(self._text[at:]), rb"()\r?\n" if self.feed == b"\n" else b"()" + self.feed]
        return re.compile(b"(?<=%b)" % self.feed + b"".join(parts))

    def learned(self, data: bytes, begin: int, notes: Notes) -> bool:
        """Learn from a line as its format read it; True when enough is known of the shape."""
        found, (heard,) = self.whole.match(data, begin), notes.heard
        if found is None or (heard.step is None and (b"it/s" in self._text or b"s/it" in self._text)):
            return False  # a bar that is behind the rows may come to show their steps
        words = [found[1 + index] for index in self._steady]
        numbers = [(index, number_in(found[1 + index])) for index in self._of_kind("field", "fraction", "whole")]
        holds = {
            name: {index for index, number in numbers if number == value or (number != number and value != value)}
            for name, value in heard.numbers.items()
        }
        ahead = {} if heard.step is None else {i: heard.step - int(found[1 + i]) for i in self._of_kind("whole")}
        agree = self._heard is not None and heard.is_like(self._heard) and notes.told == self._told
        if agree:
            holds = {name: held & self._holds[name] for name, held in holds.items()}
            moved = words != self._words
            ahead = {i: by for i, by in ahead.items() if i in self._ahead and (moved or by == self._ahead[i])}
        if not all(holds.values()) or (heard.step is not None and not ahead):
            self._heard = None
            return False
        self._samples = self._samples + 1 if agree else 1
        self._heard, self._told, self._words, self._holds, self._ahead = heard, list(notes.told), words, holds, ahead
        kept = sorted({*self._steady, *ahead, *(index for held in holds.values() for index in held)})
        if self._samples >= LEARNED_FROM and kept != self._kept:
            self._kept = kept
            self.several = self._expression()
        return self._samples >= LEARNED_FROM

    def note(self, found: Sequence[tuple[bytes, ...]], line: int, notes: Notes) -> int:
        """Note the rows of the lines after `line`, and return how many: those before one that is in any doubt."""
        if not found or self._heard is None:
            return 0
        columns, count = dict(zip(self._kept, zip(*found, strict=True), strict=False)), len(found)
        for index, word in zip(self._steady, self._words, strict=True):
            if columns[index].count(word) < count:
                count = min(count, next(at for at, other in enumerate(columns[index]) if other != word))
        try:
            steps = [np.array([*map(int, columns[i][:count])]) + by for i, by in self._ahead.items()]
            told = {name: {columns[index] for index in held} for name, held in self._holds.items()}
            if any(len(alike) > 1 for alike in told.values()) or any((one != steps[0]).any() for one in steps[1:]):
                return 0  # more lines must tell which is which
            numbers = {name: array("d", [*map(float, alike.pop()[:count])]) for name, alike in told.items()}
        except (ValueError, OverflowError):
            return 0
        lines = array("q", range(line + 1, line + 1 + count)) if self.feed == b"\n" else array("q", [line]) * count
        return notes.successive(
            self._heard, self._told, numbers, array("q", steps[0].tobytes()) if steps else None, lines
        )
