"""TensorBoard event files: scalar summaries, read without TensorBoard.

A record is: length (uint64, little endian), masked CRC-32C of it, data, masked CRC-32C of the data. The data is the
protobuf message `Event` (event.proto, summary.proto of TensorFlow): step = field 2, summary = field 5; in a summary
each value = field 1 with tag = 1, simple_value = 2 (float32), tensor = 8 whose float_val = 5 or tensor_content = 4.
The checksum of the length guards the framing; that of the data is not computed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from finitune.sources.logs.parsed_log import ParsedLog

LARGEST = 64 * 2**20
"""No event is larger; pictures are a few MB."""
MOST_STEPS = 500_000
TAGS = (
    ("loss", re.compile(r"(train(ing)?[/_])?loss(_step)?|Train/.*loss", re.IGNORECASE)),
    ("grad_norm", re.compile(r"(train(ing)?[/_])?grad(ient)?_?norm(_step)?", re.IGNORECASE)),
    ("lr", re.compile(r"(train/)?(lr|learning_rate)|lr-.*|Train/.*lr", re.IGNORECASE)),
    ("loss_scale", re.compile(r"(train/)?loss_scale|Train/.*loss_scale", re.IGNORECASE)),
    ("eval_loss", re.compile(r"(eval|val|valid|validation|test)[/_]loss(_epoch)?", re.IGNORECASE)),
)


def recognises(head: bytes) -> bool:
    if len(head) < 12:
        return False
    length, check = struct.unpack_from("<QI", head)
    return 0 < length <= LARGEST and check == _masked_crc(head[:8])


def read(path: Path, log: ParsedLog) -> None:
    """The line of a value is the number of its record, from 1. A record that was cut short ends the reading."""
    rows: dict[int, dict[str, float]] = {}
    places: dict[int, int] = {}
    for number, event in enumerate(_records(path), start=1):
        if len(rows) >= MOST_STEPS:
            log.cut = f"only the first {MOST_STEPS:,} steps were read"
            break
        step, values = _event(event)
        for tag, value in values:
            name = next((name for name, pattern in TAGS if pattern.fullmatch(tag)), None)
            if name:
                rows.setdefault(step, {})[name] = value
                places.setdefault(step, number)
            elif "reward" in tag:
                log.attempt.rewards = True
    for step in sorted(rows):
        values, line = rows[step], places[step]
        if "eval_loss" in values:
            log.row({"eval_loss": values.pop("eval_loss")}, line, step=step)
        if "loss" in values:
            log.row(values, line, step=step)


def _records(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while len(head := file.read(12)) == 12:
            length, check = struct.unpack("<QI", head)
            if length > LARGEST or check != _masked_crc(head[:8]):
                return
            data = file.read(length)
            if len(data) < length or len(file.read(4)) < 4:
                return
            yield data


def _event(data: bytes) -> tuple[int, list[tuple[str, float]]]:
    step, values = 0, list[tuple[str, float]]()
    for number, value in _fields(data):
        if number == 2 and isinstance(value, int):
            step = value if value < 2**62 else 0
        elif number == 5 and isinstance(value, bytes):
            values += [
                found for key, one in _fields(value) if key == 1 and isinstance(one, bytes) for found in _scalar(one)
            ]
    return step, values


def _scalar(data: bytes) -> Iterator[tuple[str, float]]:
    tag, number = "", None
    for key, value in _fields(data):
        if not isinstance(value, bytes):
            continue
        if key == 1:
            tag = value.decode(errors="replace")
        elif key == 2 and len(value) == 4:
            number = struct.unpack("<f", value)[0]
        elif key == 8:
            for inner, part in _fields(value):
                if inner in (4, 5) and isinstance(part, bytes) and len(part) == 4:
                    number = struct.unpack("<f", part)[0]
    if tag and number is not None:
        yield tag, number


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a protobuf message; what is malformed ends it."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if kind == 2:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            return
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            return value, at
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            break
    return value, at


def _table() -> tuple[int, ...]:
    out: list[int] = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # the polynomial of Castagnoli, reflected
        out.append(byte)
    return tuple(out)


_CRC = _table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
