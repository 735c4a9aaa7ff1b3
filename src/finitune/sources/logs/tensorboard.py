"""TensorBoard event files: scalar summaries, read without TensorBoard.

A record is: length (uint64, little endian), masked CRC-32C of it, data, masked CRC-32C of the data. The data is the
protobuf message `Event` (event.proto, summary.proto of TensorFlow): step = field 2, summary = field 5; in a summary
each value = field 1 with tag = 1, simple_value = 2 (float32), tensor = 8 whose float_val = 5 or tensor_content = 4.
The checksum of the length guards the framing; that of the data is not computed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from finitune.sources.logs.metrics import Metrics
from finitune.sources.logs.parsed_log import ParsedLog
from finitune.sources.logs.protobuf import fields

LARGEST = 64 * 2**20
"""No event is larger; pictures are a few MB."""


def recognises(head: bytes) -> bool:
    if len(head) < 12:
        return False
    length, check = struct.unpack_from("<QI", head)
    return 0 < length <= LARGEST and check == _masked_crc(head[:8])


def read(path: Path, log: ParsedLog) -> None:
    """The line of a value is the number of its record, from 1. A record that was cut short ends the reading."""
    metrics = Metrics(log)
    for number, event in enumerate(_records(path), start=1):
        step, values = _event(event)
        if not all(metrics.add(step, tag, value, number) for tag, value in values):
            break
    metrics.write()


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
    for number, value in fields(data):
        if number == 2 and isinstance(value, int):
            step = value if value < 2**62 else 0
        elif number == 5 and isinstance(value, bytes):
            values += [
                found for key, one in fields(value) if key == 1 and isinstance(one, bytes) for found in _scalar(one)
            ]
    return step, values


def _scalar(data: bytes) -> Iterator[tuple[str, float]]:
    tag, number = "", None
    for key, value in fields(data):
        if not isinstance(value, bytes):
            continue
        if key == 1:
            tag = value.decode(errors="replace")
        elif key == 2 and len(value) == 4:
            number = struct.unpack("<f", value)[0]
        elif key == 8:
            for inner, part in fields(value):
                if inner in (4, 5) and isinstance(part, bytes) and len(part) == 4:
                    number = struct.unpack("<f", part)[0]
    if tag and number is not None:
        yield tag, number


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
