"""Text from a terminal: each line that holds a mark is handed to the formats.

Lines are counted at line feeds; a progress bar that draws itself anew with carriage returns stays one line. Memory
is bounded by the chunk, and a line longer than `LONGEST_LINE` is read in pieces.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import BinaryIO

from finitune.sources.logs import banners, bars, deepspeed, dicts, endings, messages, pasted
from finitune.sources.logs.parsed_log import ParsedLog
from finitune.sources.result import Track, untracked

CHUNK = 4 * 2**20
LONGEST_LINE = 16 * 2**10
_RANK = re.compile(rb"\[(?:(?:rank|default)(\d{1,6})\]:|\d{1,4},(\d{1,6})\]<std)")
"""As torchrun and mpirun write it."""
_LABEL = re.compile(rb" {0,5}(\d{1,6}): ")
"""As `srun -l` writes it."""
LABELLED = 0.75
"""Of the lines at the beginning of a log; what a batch script itself prints has no label."""
FEW_RANKS = 8
"""Of so many ranks each may have printed the same so far, one after the other."""
_CARRIES_ON = re.compile(rb"\d{1,9}\s*$|\.? ?Attempted loss scale", re.MULTILINE)
WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
HEAD = 256 * 2**10
"""Banners, versions and settings are printed at the beginning, a traceback at the end; so far are they looked for."""
MARKS = (b"oss", bars.POLICY_BAR, b"skipped=", b"OVERFLOW", b"Grad overflow", *messages.WORDS)
"""Every line that a format reads holds one of them; most lines hold none."""
_ANSI = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\n]{0,200}\x07?")
LONGEST_WRAPPED = 200
WRAPPED = 2000
"""A record that was wrapped by a terminal is looked for in so many bytes."""


def read(
    stream: BinaryIO, log: ParsedLog, *, size: int | None = None, most: int | None = None, track: Track = untracked
) -> None:
    """Read `stream`, of `size` bytes where that is known, or the first `most` of it; `track` shows how far it is."""
    rest, line, seen, ending = b"", 1, 0, b""
    labelled = False
    total = None if size is None else -(-size // CHUNK) + 1
    for block in track(_blocks(stream, log, most), log.file, total):
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
            banners.read(data[:HEAD], line, log)
        seen += len(data)
        _lines(data, line, log, labelled=labelled)
        line += data.count(b"\n")
        ending = data[-HEAD:] if len(data) >= HEAD else (ending + data)[-HEAD:]
    endings.read(ending, line - ending.count(b"\n"), log)
    if seen > HEAD:
        banners.read(ending, line - ending.count(b"\n"), log, ending=True)


def _blocks(stream: BinaryIO, log: ParsedLog, most: int | None) -> Iterator[bytes]:
    """Chunks in UTF-8, and an empty one at the end; PowerShell redirects into UTF-16 with a byte-order mark."""
    block = stream.read(CHUNK)
    wide = codecs.getincrementaldecoder("utf-16")("replace") if block.startswith(WIDE) else None
    read = 0
    while block:
        yield wide.decode(block).encode(errors="replace") if wide else block
        read += len(block)
        if most is not None and read >= most:
            log.cut = f"only the first {read / 1e6:,.0f} MB that it unpacks to were read"
            break
        block = stream.read(CHUNK)
    yield b""


def _open_record(data: bytes) -> int:
    """Where a record begins that the end of the chunk may have cut; the length where none does."""
    begin = data.rfind(b"{", max(0, len(data) - WRAPPED))
    return begin if begin > 0 and data.find(b"}", begin) < 0 and data[begin + 1 : begin + 2] in b"'\"" else len(data)


def _lines(data: bytes, line: int, log: ParsedLog, *, labelled: bool) -> None:
    """Read the lines of `data` that hold a mark; the first line is number `line`."""
    counted = 0
    for begin, end in _marked(data):
        begin = max(begin, counted)  # a record of the line before may end here
        if begin >= end:
            continue
        line += data.count(b"\n", counted, begin)
        text = data[begin:end]
        log.rank = _rank(text, labelled=labelled) if labelled or text.startswith(b"[") else ""
        counted = _line(data, begin, end, text, line, log)
        line += data.count(b"\n", end, counted) if counted > end else 0
        counted = max(counted, end)


def _marked(data: bytes) -> list[tuple[int, int]]:
    """Where each line that holds a mark begins and ends, in order."""
    found = dict[int, int]()
    for mark in MARKS:
        at = data.find(mark)
        while at >= 0:
            end = data.find(b"\n", at)
            end = len(data) if end < 0 else end
            found[data.rfind(b"\n", 0, at) + 1] = end
            at = data.find(mark, end)
    return sorted(found.items())


def _line(data: bytes, begin: int, end: int, text: bytes, line: int, log: ParsedLog) -> int:
    """Read one line; returns where it ends, which is further below for a table or where a terminal wrapped it."""
    done = 0
    if text.find(pasted.TITLE, 0, LONGEST_LINE) >= 0:
        done = pasted.read(data, begin, end, line, log)
    elif text.find(b"{") >= 0:
        done = dicts.read(data, begin, end, line, log)
    if done >= end:
        return done
    if text.find(deepspeed.OVERFLOW) >= 0:
        end = _unwrapped(data, begin, end)
        text = data[begin:end].replace(b"\n", b"")
    _pieces(text[done - begin :] if done else text, line, log)
    return end


def _labelled(head: bytes) -> bool:
    """Whether `srun -l` wrote a rank before each line; a loop that writes its steps so counts them in order."""
    lines = [line for line in head.split(b"\n") if line.strip()]
    ranks = [int(found[1]) for line in lines if (found := _LABEL.match(line))]
    known, steps = set(ranks), list(pairwise(ranks))
    if len(ranks) < LABELLED * len(lines) or len(known) < 2 or max(ranks) >= FEW_RANKS * len(known):
        return False
    counted = all(after in (before + 1, 0) for before, after in steps)
    return any(after < before for before, after in steps) and (len(known) <= FEW_RANKS or not counted)


def _rank(text: bytes, *, labelled: bool) -> str:
    """The rank that a launcher put before the line; empty where there is none."""
    if labelled and (label := _LABEL.match(text)):
        return str(int(label[1]))
    found = _RANK.match(text)
    return (found[1] or found[2]).decode() if found else ""


def _unwrapped(data: bytes, begin: int, end: int) -> int:
    """The end of the next line, where a terminal wrapped this one within the message of a scaler."""
    further = data.find(b"\n", end + 1, end + LONGEST_WRAPPED)
    wrapped = further >= 0 and (
        not deepspeed.FINISHED.search(data, max(begin, end - LONGEST_WRAPPED), end) or _CARRIES_ON.match(data, end + 1)
    )
    return further if wrapped and data[end + 1 : end + 2] not in b"[{" else end


def _pieces(text: bytes, line: int, log: ParsedLog) -> None:
    """Read each drawing of a bar by itself, and no piece beyond bounds."""
    if text.find(b"\r") < 0 and len(text) <= LONGEST_LINE:
        _piece(text, line, log)
        return
    for drawing in text.removesuffix(b"\r").split(b"\r"):
        for begin in range(0, len(drawing), LONGEST_LINE):
            _piece(drawing[begin : begin + LONGEST_LINE], line, log)


def _piece(text: bytes, line: int, log: ParsedLog) -> None:
    if not (deepspeed.read(text, line, log) or bars.read(text, line, log)):
        messages.read(text, line, log)
    elif text.find(b"nan") >= 0 or text.find(b"NaN") >= 0 or text.find(b"fully masked") >= 0:
        messages.read_beside(text, line, log)
