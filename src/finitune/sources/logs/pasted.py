"""The table of a notebook (`Step | Training Loss | Validation Loss`), pasted as text or within the .ipynb file as HTML.

A pasted cell is divided from the next by a tab, a bar, two spaces or, where no title is in doubt, by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from finitune.sources.logs.names import signal_of
from finitune.sources.logs.parsed_log import ParsedLog, number_in

TITLE = b"Training Loss"
_TITLES = re.compile(rb"Step|Epoch|Training Loss|Validation Loss")
_DIVIDED = re.compile(rb"\t|\||\s{2,20}")
_RULE = re.compile(rb"[\s|:+-]{1,200}\Z")
_TAG = re.compile(rb"<(tr|t[hd]|/table)\b[^<>]{0,100}>([^<>]{0,40})")
LONGEST = 200
"""Bytes of a row as text, or of the HTML before the title."""
APART = 2000
"""So near to each other are the tags of a table."""
MOST_TITLES = 50


def read(data: bytes, begin: int, end: int, line: int, log: ParsedLog) -> int:
    """The table whose title stands in this line; returns where it ends, 0 where there is none."""
    if b"<th" in data[begin:end]:
        return _html(data, begin, line, log)
    titles = _cells(data[begin:end], None)
    if TITLE not in titles or titles[0] not in (b"Step", b"Epoch"):
        return 0
    done = 0
    while True:
        line += 1
        begin = end + 1
        end = data.find(b"\n", begin, begin + LONGEST)
        end = min(len(data), begin + LONGEST) if end < 0 else end
        text = data[begin:end]
        if begin >= len(data) or not (_RULE.match(text) or _row(titles, _cells(text, len(titles)), line, log)):
            return done
        done = end


def _cells(text: bytes, count: int | None) -> Sequence[bytes]:
    """Of a row with `count` cells, or of the titles."""
    text = text.strip().strip(b"|")
    cells = [cell.strip() for cell in _DIVIDED.split(text)]
    if count is None and len(cells) == 1:
        titles = _TITLES.findall(text)
        return titles if b" ".join(titles) == text else ()
    return text.replace(b"No log", b"-").split() if count is not None and len(cells) == 1 else cells


def _row(titles: Sequence[bytes], cells: Sequence[bytes], line: int, log: ParsedLog) -> bool:
    if len(cells) != len(titles) or not cells[0].isdigit() or len(cells[0]) > 12:
        return False
    named = zip((signal_of(title.decode(errors="replace")) for title in titles), map(number_in, cells), strict=True)
    values = {name: value for name, value in named if name and value is not None}
    step = int(cells[0]) if titles[0] == b"Step" else None
    evaluated = values.pop("eval_loss", None)
    if "loss" in values:
        log.row(values, line, step=step)
    if evaluated is not None:
        log.row({"eval_loss": evaluated}, line, step=step)
    return True


def _html(data: bytes, begin: int, line: int, log: ParsedLog) -> int:
    start = data.rfind(b"<tr", max(0, begin - LONGEST), begin)
    start = begin if start < 0 else start
    line -= data.count(b"\n", start, begin)
    titles, cells, at = list[bytes](), list[bytes](), start
    while tag := _TAG.search(data, at, at + APART):
        line += data.count(b"\n", at, tag.start())
        at = tag.start(2)
        line += data.count(b"\n", tag.start(), at)
        if tag[1] == b"th":
            titles.append(tag[2].strip())
            if len(titles) > MOST_TITLES or cells:
                break
        elif tag[1] == b"td":
            cells.append(tag[2].strip())
            if len(cells) == len(titles):
                _row(titles, cells, line, log)
        elif tag[1] == b"tr":
            cells = []
        else:
            break
    return at if titles else 0
