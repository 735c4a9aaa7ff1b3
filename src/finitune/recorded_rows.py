"""The files of a recording as they are read: nothing in them is believed, and nothing of them fills the memory."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from finitune.contained import contained
from finitune.finding import UnreadableInput
from finitune.json_memory import json_memory

FORMAT = 1
MAX_HEADER_BYTES = 2**24
MAX_LINE_BYTES = 2**23
"""A row takes 150 bytes, an incident with the outputs of a thousand modules 200 kB."""
MAX_MEMORY = 2**29
"""Bytes that the events of one rank may take once they are read; an incident takes some 10 kB."""

_TEXT = ("symptom", "level", "capture", "arm", "cause", "expect", "result", "action", "text", "why_not")
_NUMBERS = ("id", "incident", "last_good", "live", "code")
_FLAGS = ("placebo", "optional", "repeats", "bit_for_bit", "runs_elsewhere", "settles", "rerun", "compiled")
_TYPES: Mapping[str, tuple[type, str]] = {
    **dict.fromkeys(_TEXT, (str, "text")),
    **dict.fromkeys(_NUMBERS, (int, "a whole number")),
    **dict.fromkeys(_FLAGS, (bool, "true or false")),
    "time": (float, "a number"),
}
"""What the fields of events are, if they are there and not null."""
_NEEDED = {"arm": ("arm", "cause", "expect", "result")}


def read_header(path: Path, problems: list[str]) -> Mapping[str, Any]:
    """The facts of the run; empty where they cannot be read. Raises UnreadableInput for a later format."""
    try:
        contained(path.parent, path, expected="the facts of the run", most=MAX_HEADER_BYTES)
        text = path.read_text(encoding="utf-8")
        if json_memory(text) > MAX_MEMORY:
            raise UnreadableInput("more values than fit into the memory")
        header = json.loads(text)
    except FileNotFoundError:
        problems.append(f"{path}: missing, so no facts about the run")
        return {}
    except (OSError, ValueError, RecursionError) as error:
        problems.append(f"{path}: not readable as JSON ({error}), so no facts about the run")
        return {}
    if not isinstance(header, dict):
        problems.append(f"{path}: expected a JSON object")
        return {}
    refuse_future(path, header)  # pyright: ignore[reportUnknownArgumentType]
    return header  # pyright: ignore[reportUnknownVariableType]


def refuse_future(path: Path, data: Mapping[str, Any]) -> None:
    """Raises UnreadableInput where a later finitune wrote this."""
    written = data.get("format")
    if isinstance(written, int) and written > FORMAT:
        raise UnreadableInput(
            f"{path}: a recording of format {min(written, 10**9)} (expected {FORMAT}; update finitune)"
        )


def wrong_field(event: Mapping[str, Any]) -> str | None:
    """What is wrong with the first field of an event that is not what it should be."""
    for name in _NEEDED.get(event["event"], ()):
        if event.get(name) is None:
            return f"{name} is missing"
    for name, value in event.items():
        kind, what = _TYPES.get(name, (object, ""))
        plain = isinstance(value, kind) or (kind is float and isinstance(value, int))
        if value is not None and (not plain or (kind is int and isinstance(value, bool))):
            return f"{name}: expected {what}"
    return None


def rows_of(path: Path, problems: list[str]) -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    """Each row with its line, as far as the file went when it was opened."""
    if not path.is_file():  # a device may never end
        return
    with path.open("rb") as file:
        left = os.fstat(file.fileno()).st_size  # a run that goes on may write faster than this reads
        for line_number in itertools.count(1):
            line = file.readline(MAX_LINE_BYTES + 1) if left > 0 else b""
            left -= len(line)
            if not line:
                return
            if len(line) > MAX_LINE_BYTES:
                problems.append(f"{path}: line {line_number}: more than {MAX_LINE_BYTES} bytes; the rest was left out")
                return
            if not line.strip():
                continue
            try:
                row = json.loads(line) if len(line) < 2**20 or json_memory(line) <= MAX_MEMORY else None
            except (ValueError, RecursionError):
                cut = "the last line was cut short, as by a kill or a full disk: it and what came after are not there"
                whole = line[-1:] == b"\n"
                why = f"line {line_number} is damaged; it was left out" if whole else cut
                problems.append(f"{path}: {why}")
                continue
            if isinstance(row, dict):
                yield line, row
            else:
                problems.append(f"{path}: line {line_number} is not a JSON object; it was left out")
