"""The `.wandb` file of a run of Weights & Biases, online or offline, read without wandb.

The file is a log of LevelDB: blocks of 32 KiB; in them records of checksum (4 bytes), length (2), kind (1: whole,
2 to 4: first, middle and last part) and data. The data is the protobuf message `Record`: history = field 2; in it
items = field 1 with key = 1, nested key = 2 and value as JSON = 16.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

from finitune.sources.logs.metrics import Metrics, number_of
from finitune.sources.logs.parsed_log import ParsedLog
from finitune.sources.logs.protobuf import fields

MAGIC = b":W&B"
HEADER = 7
BLOCK = 2**15
LARGEST = 16 * 2**20
"""No record of history is larger; what is, is left out."""

WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def recognises(head: bytes) -> bool:
    return head.startswith(MAGIC)


def read(path: Path, log: ParsedLog) -> None:
    """The line of a value is the number of its record, from 1. A record that was cut short ends the reading."""
    metrics = Metrics(log)
    count = 0
    for number, record in enumerate(_records(path), start=1):
        said: dict[str, float] = {}
        for key, history in fields(record):
            if key == 2 and isinstance(history, bytes):
                said |= dict(_items(history))
        if said:
            count += 1
            if not metrics.record(said, int(said.get("_step", count)), number):
                break
    metrics.write()


def _items(history: bytes) -> Iterator[tuple[str, float]]:
    for key, item in fields(history):
        if key != 1 or not isinstance(item, bytes):
            continue
        names: list[str] = []
        value = None
        for inner, part in fields(item):
            if isinstance(part, bytes) and inner in (1, 2):
                names.append(part.decode(errors="replace"))
            elif isinstance(part, bytes) and inner == 16 and len(part) < 64:  # a number; tables and texts are longer
                try:
                    value = number_of(json.loads(part))
                except ValueError:
                    continue
        if names and value is not None:
            yield "/".join(names), value


def _records(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.read(HEADER)
        at = HEADER
        whole = bytearray()
        while True:
            left = BLOCK - at % BLOCK
            if left < HEADER:  # too little for a head: padding
                file.read(left)
                at += left
                continue
            head = file.read(HEADER)
            if len(head) < HEADER:
                return
            _, length, kind = struct.unpack("<IHB", head)
            data = file.read(length)
            at += HEADER + length
            if len(data) < length or kind not in (WHOLE, FIRST, MIDDLE, LAST):
                return
            if kind in (WHOLE, FIRST):
                whole = bytearray()
            if len(whole) <= LARGEST:
                whole += data
            if kind in (WHOLE, LAST) and len(whole) <= LARGEST:
                yield bytes(whole)
