"""Text from a terminal: lines that hold a mark are found in chunks of bytes and handed to the formats.

Lines are counted at line feeds; a progress bar that draws itself anew with carriage returns stays one line. Memory
is bounded by the chunk, and a line longer than `LONGEST_LINE` is read in pieces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from finitune.sources.logs import banners, bars, deepspeed, dicts, messages
from finitune.sources.logs.reading import Notes
from finitune.sources.reading import Track, untracked

CHUNK = 4 * 2**20
LONGEST_LINE = 16 * 2**10
HEAD = 256 * 2**10
"""Banners, versions and settings are printed at the beginning, a traceback at the end; so far are they looked for."""
MARKS = (b"oss", b"nan", b"NaN", b"Error", b"ssert", b"skipped=", b"mismatch", b"arning:", b"!!!!!!!!")
"""Every line that a format reads holds one of them; few, as each costs a pass over the bytes."""
_ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\n]{0,200}\x07?")
WRAPPED = 2000
"""A record that was wrapped by a terminal is looked for in so many bytes."""


def read(stream: BinaryIO, notes: Notes, *, size: int | None = None, track: Track = untracked) -> None:
    """Read all of `stream`, of `size` bytes where that is known; `track` shows how far the reading is."""
    rest, line, seen, ending = b"", 1, 0, b""
    total = None if size is None else -(-size // CHUNK) + 1
    for block in track(_blocks(stream), notes.file, total):
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
        if seen < HEAD:
            banners.read(data[:HEAD], line, notes)
        seen += len(data)
        _scan(data, line, notes)
        line += data.count(b"\n")
        ending = data[-HEAD:] if len(data) >= HEAD else (ending + data)[-HEAD:]
    if seen > HEAD:
        banners.read(ending, line - ending.count(b"\n"), notes, ending=True)


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Chunks, and an empty one at the end."""
    while block := stream.read(CHUNK):
        yield block
    yield b""


def _open_record(data: bytes) -> int:
    """Where a record begins that the end of the chunk may have cut; the length where none does."""
    begin = data.rfind(b"{", max(0, len(data) - WRAPPED))
    return begin if begin > 0 and data.find(b"}", begin) < 0 and data[begin + 1 : begin + 2] in b"'\"" else len(data)


def _scan(data: bytes, first_line: int, notes: Notes) -> None:
    counted, line, done = 0, first_line, 0
    for begin, end in _marked(data):
        if begin < done:  # the record of an earlier line was wrapped
            continue
        line += data.count(b"\n", counted, begin)
        counted = begin
        done = dicts.read(data, begin, end, line, notes)
        if done >= end:
            continue
        for part in _pieces(data[done or begin : end]):
            if not (deepspeed.read(part, line, notes) or bars.read(part, line, notes)):
                messages.read(part, line, notes)
            else:
                messages.read_beside(part, line, notes)


def _pieces(text: bytes) -> Iterator[bytes]:
    """What the line showed: each drawing of a bar by itself, and no piece beyond bounds."""
    for part in text.split(b"\r") if b"\r" in text else (text,):
        if len(part) <= LONGEST_LINE:
            if part:
                yield part
        else:
            for at in range(0, len(part), LONGEST_LINE):
                yield part[at : at + LONGEST_LINE]


def _marked(data: bytes) -> list[tuple[int, int]]:
    """Begin and end of every line that holds a mark, in order."""
    spans: dict[int, int] = {}
    for mark in MARKS:
        at = data.find(mark)
        while at >= 0:
            begin = data.rfind(b"\n", 0, at) + 1
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            spans[begin] = end
            at = data.find(mark, end)
    return sorted(spans.items())
