"""Text from a terminal: lines that hold a mark are found in chunks of bytes and handed to the formats.

Lines are counted at line feeds; a progress bar that draws itself anew with carriage returns stays one line. Memory
is bounded by the chunk, and a line longer than `LONGEST_LINE` is read in pieces.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO

from finitune.sources.logs import banners, bars, deepspeed, dicts, messages, pasted
from finitune.sources.logs.attempt import ONE_IN, Notes
from finitune.sources.logs.line_shapes import Shapes, may_follow
from finitune.sources.result import Track, untracked

CHUNK = 4 * 2**20
LONGEST_LINE = 16 * 2**10
_RANK = re.compile(rb"\[(?:(?:rank|default)(\d{1,6})\]:|\d{1,4},(\d{1,6})\]<std)")
"""As torchrun and mpirun write it."""
_LABEL = re.compile(rb" {0,5}(\d{1,6}): ")
"""As `srun -l` writes it."""
LABELLED = 0.75
"""Of the lines at the beginning of a log; what a batch script itself says has no label."""
FEW_RANKS = 8
"""Of so many ranks each may have said the same so far, one after the other."""
_CARRIES_ON = re.compile(rb"\d{1,9}\s*$|\.? ?Attempted loss scale", re.MULTILINE)
WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
UNSOUND = re.compile(rb"nan|inf|NaN")
HEAD = 256 * 2**10
"""Banners, versions and settings are printed at the beginning, a traceback at the end; so far are they looked for."""
MARKS = (
    b"oss", b"nan", b"NaN", b"Error", b"ssert", b"skipped=", b"OVERFLOW", b"Grad overflow", b"mismatch",
    b"single sample", b"requires_grad", b"degrees of freedom", b"response ", b"!!!!!!!!", b"finitune: step",
    b"fully masked",
)  # fmt: skip
"""Every line that a format reads holds one of them; few, as each costs a pass over the bytes."""
_ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\n]{0,200}\x07?")
SOUGHT = 256 * 2**10
"""Bytes in which the marks are sought at a time, as many lines are read by their likeness alone."""
LONGEST_WRAPPED = 200
WRAPPED = 2000
"""A record that was wrapped by a terminal is looked for in so many bytes."""


def read(
    stream: BinaryIO, notes: Notes, *, size: int | None = None, most: int | None = None, track: Track = untracked
) -> None:
    """Read `stream`, of `size` bytes where that is known, or the first `most` of it; `track` shows how far it is."""
    rest, line, seen, ending = b"", 1, 0, b""
    shapes, labelled = Shapes(), False
    total = None if size is None else -(-size // CHUNK) + 1
    for block in track(_blocks(stream, notes, most), notes.file, total):
        data = rest + block
        if block:
            cut = data.rfind(b"\n") + 1
            if not cut and len(data) <= CHUNK:
                rest = data
                continue
            rest, data = (data[cut:], data[:cut]) if cut else (b"", data)
            cut = _open_record(data)
            rest, data = data[cut:] + rest, data[:cut]
        if not data:
            continue
        if b"\x1b" in data:
            data = _ANSI.sub(b"", data)
        if not seen:
            labelled = _labelled(data[:HEAD])
        if seen < HEAD:
            banners.read(data[:HEAD], line, notes)
        seen += len(data)
        _scan(data, line, notes, shapes, labelled=labelled)
        line += data.count(b"\n")
        ending = data[-HEAD:] if len(data) >= HEAD else (ending + data)[-HEAD:]
    if seen > HEAD:
        banners.read(ending, line - ending.count(b"\n"), notes, ending=True)


def _blocks(stream: BinaryIO, notes: Notes, most: int | None) -> Iterator[bytes]:
    """Chunks in UTF-8, and an empty one at the end; PowerShell redirects into UTF-16 with a byte-order mark."""
    block = stream.read(CHUNK)
    wide = codecs.getincrementaldecoder("utf-16")("replace") if block.startswith(WIDE) else None
    read = 0
    while block:
        yield wide.decode(block).encode(errors="replace") if wide else block
        read += len(block)
        if most is not None and read >= most:
            notes.cut = f"only the first {read / 1e6:,.0f} MB that it unpacks to were read"
            break
        block = stream.read(CHUNK)
    yield b""


def _open_record(data: bytes) -> int:
    """Where a record begins that the end of the chunk may have cut; the length where none does."""
    begin = data.rfind(b"{", max(0, len(data) - WRAPPED))
    return begin if begin > 0 and data.find(b"}", begin) < 0 and data[begin + 1 : begin + 2] in b"'\"" else len(data)


def _scan(data: bytes, first_line: int, notes: Notes, shapes: Shapes, *, labelled: bool) -> None:
    counted, line = 0, first_line
    marks = _Marks(data)
    begin, end = marks.next(0)
    while end:
        line += data.count(b"\n", counted, begin)
        counted, before = begin, notes.single
        notes.begin_line(_rank(data, begin, labelled=labelled), hear=may_follow(data, begin, end))
        done = _read(data, begin, end, line, notes, shapes)
        if done == end:
            done = shapes.read_on(data, begin, end, line, notes)
        if done == end and notes.full and notes.single > before:
            done = marks.pass_over(begin, done, notes)
        begin, end = marks.next(done)


def _read(data: bytes, begin: int, end: int, line: int, notes: Notes, shapes: Shapes) -> int:
    """Read one line; returns where it ends, which is further below for a table or where a terminal wrapped it."""
    if data.find(pasted.TITLE, begin, min(end, begin + LONGEST_LINE)) >= 0:
        done = pasted.read(data, begin, end, line, notes)
    else:
        done = dicts.read(data, begin, end, line, notes)
    if done < end:
        if data.find(deepspeed.OVERFLOW, begin, end) >= 0:
            end = _unwrapped(data, begin, end)
            _line(data[done or begin : end].replace(b"\n", b""), line, notes, shapes)
        else:
            _line(data[done or begin : end], line, notes, shapes)
    return max(done, end)


def _labelled(head: bytes) -> bool:
    """Whether `srun -l` wrote a rank before each line; a loop that writes its steps so counts them in order."""
    lines = [line for line in head.split(b"\n") if line.strip()]
    ranks = [int(found[1]) for line in lines if (found := _LABEL.match(line))]
    known, steps = set(ranks), list(pairwise(ranks))
    if len(ranks) < LABELLED * len(lines) or len(known) < 2 or max(ranks) >= FEW_RANKS * len(known):
        return False
    counted = all(after in (before + 1, 0) for before, after in steps)
    return any(after < before for before, after in steps) and (len(known) <= FEW_RANKS or not counted)


def _rank(data: bytes, begin: int, *, labelled: bool) -> str:
    """The rank that a launcher put before the line; empty where there is none."""
    if labelled and (label := _LABEL.match(data, begin)):
        return str(int(label[1]))
    found = _RANK.match(data, begin) if data.startswith(b"[", begin) else None
    return (found[1] or found[2]).decode() if found else ""


def _unwrapped(data: bytes, begin: int, end: int) -> int:
    """The end of the next line, where a terminal wrapped this one within the message of a scaler."""
    further = data.find(b"\n", end + 1, end + LONGEST_WRAPPED)
    wrapped = further >= 0 and (
        not deepspeed.FINISHED.search(data, max(begin, end - LONGEST_WRAPPED), end) or _CARRIES_ON.match(data, end + 1)
    )
    return further if wrapped and data[end + 1 : end + 2] not in b"[{" else end


def _line(text: bytes, line: int, notes: Notes, shapes: Shapes) -> None:
    """What the line showed: each drawing of a bar by itself, and no piece beyond bounds."""
    text = text.removesuffix(b"\r")
    if b"\r" not in text and len(text) <= LONGEST_LINE:
        _piece(text, line, notes)
        return
    at, rank = 0, notes.rank
    while at < len(text):
        end = text.find(b"\r", at)
        end = len(text) if end < 0 else end
        for begin in range(at, end, LONGEST_LINE):
            notes.begin_line(rank, hear=may_follow(text, at, end))
            _piece(text[begin : min(end, begin + LONGEST_LINE)], line, notes)
        done = shapes.read_on(text, at, end, line, notes, b"\r")
        if done == end and notes.full:
            done = _next_drawing(text, at, end, notes)
        at = done + 1
    notes.begin_line(rank)


def _next_drawing(text: bytes, begin: int, end: int, notes: Notes) -> int:
    """Where the last drawing ends that is passed over after the one from `begin` to `end`."""
    unsound = UNSOUND.search(text, begin, end)
    for _ in range(ONE_IN - 1):
        further = text.find(b"\r", end + 1)
        if further < 0 or (not unsound and UNSOUND.search(text, end + 1, further)):
            break
        notes.passed_over = True
        end = further
    return end


def _piece(text: bytes, line: int, notes: Notes) -> None:
    if not (deepspeed.read(text, line, notes) or bars.read(text, line, notes)):
        messages.read(text, line, notes)
    elif any(word in text for word in messages.WORDS_BESIDE):
        messages.read_beside(text, line, notes)


class _Marks:
    """Lines that hold a mark, in order; each mark is sought once over the data that is not read otherwise."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.limit = 0
        """So far are the marks sought; none stands across it, as a line ends there."""
        self.at = list[int]()

    def next(self, start: int) -> tuple[int, int]:
        """Begin and end of the next such line from `start` on; (0, 0) where there is none."""
        data = self.data
        while (first := self._first(start)) == self.limit:
            if first == len(data):
                return 0, 0
            start = max(start, first)
            self.limit = data.find(b"\n", start + SOUGHT) + 1 or len(data)
            self.at = [self._find(mark, start) for mark in MARKS]
        end = data.find(b"\n", first)
        return max(start, data.rfind(b"\n", start, first) + 1), len(data) if end < 0 else end

    def _first(self, start: int) -> int:
        """Where the next mark stands; the limit where there is none before it."""
        at = self.at
        while at and (first := min(at)) < min(start, self.limit):
            index = at.index(first)
            at[index] = self._find(MARKS[index], start)
        return min(at, default=self.limit)

    def _find(self, mark: bytes, start: int) -> int:
        at = self.data.find(mark, start, self.limit)
        return self.limit if at < 0 else at

    def pass_over(self, begin: int, end: int, notes: Notes) -> int:
        """Where to go on after the row of a line: some lines below, unless one of them holds anything but a row."""
        data = self.data
        stop = data.rfind(b"\n", end, end + (ONE_IN - 1) * (end - begin))
        if stop < 0:
            return end
        unsound = UNSOUND.search(data, begin, end)
        rows = (b"oss", b"nan", b"NaN") if unsound else (b"oss",)
        if any(data.find(mark, end, stop) >= 0 for mark in MARKS if mark not in rows):
            return end
        if not unsound and UNSOUND.search(data, end, stop):
            return end
        notes.passed_over = True
        return stop + 1
