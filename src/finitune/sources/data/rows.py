"""The rows of a data file, one by one: JSONL, JSON, CSV, TSV, Parquet or plain text.

Files are streamed, whatever they are in a compressed form. A row that cannot be read is `UnreadableInput` with its
place, because a trainer would stop there too.
"""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from finitune.finding import UnreadableInput
from finitune.json_memory import json_memory
from finitune.sources.text import json_of, kind_of, opened, reason, short, why_not

FORMS = "training data: JSONL, JSON, CSV, Parquet or .txt"

MAX_CSV_FIELD = 2**23
"""Characters in one cell; the limit of Python's own reader (131,072) is shorter than a long conversation."""

MAX_GROUP_BYTES = 2**29
"""A Parquet row group whose bytes, uncompressed, are beyond this is not opened: memory has to stay under 1 GiB."""

MAX_BATCH_BYTES = 2**26
PARQUET_ROWS = 256
"""Rows read at a time. One value of a dictionary may stand in all of them, so large groups are read in fewer."""

MAX_EXPANSION = 1000
"""Bytes of rows per byte of file, beyond MAX_BATCH_BYTES; text in the best of codecs stays below 100."""

TABLES = (".csv", ".tsv")

MAX_ROW_BYTES = 2**24
"""One line of a data file; a row of this size is thousands of times longer than any context."""

MAX_ROW_MEMORY = 2**28
"""Bytes of one row as objects."""

MAX_LIST_BYTES = 2**30
"""A JSON list is read whole, and in memory it is some times larger than in the file."""

LISTS = ("messages", "conversations", "chosen", "rejected", "input_ids", "labels", "attention_mask")
"""Columns that hold lists; a CSV cell spells them as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One example: its place in the file and the object that stands there. `line` counts from 1."""

    line: int
    data: Mapping[str, Any]


def rows(path: Path) -> Iterator[Row]:
    """The rows of a file, in order. One JSON object per line, one JSON list, a table, or lines of text (`.txt`)."""
    head = _head(path)
    if head[:4] == b"ARRO":
        raise UnreadableInput(f"{path}: Arrow is not read (expected {FORMS})")
    if head[:4] == b"PAR1":
        yield from _parquet_rows(path)
    elif path.suffix in TABLES:
        yield from _table_rows(path, delimiter="\t" if path.suffix == ".tsv" else ",")
    elif path.suffix == ".txt":
        yield from (Row(line=number, data={"text": text}) for number, text in lines(path) if text.strip())
    elif head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
        yield from (Row(line=i, data=_object(path, f"item {i}", item)) for i, item in enumerate(_list(path), start=1))
    else:
        for number, text in lines(path):
            if text.strip():
                yield Row(line=number, data=_object(path, f"line {number}", _json(path, number, text)))


def is_lines_or_list(path: Path) -> bool:
    """True for a file whose rows are lines or items of a JSON list, not those of a table."""
    return path.suffix not in TABLES and not _head(path).startswith(b"PAR1")


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file with their numbers from 1, line ends kept."""
    try:
        with opened(path, expected=FORMS) as file:
            number = 0
            while raw := file.readline(MAX_ROW_BYTES + 1):
                number += 1
                if len(raw) > MAX_ROW_BYTES:
                    raise UnreadableInput(f"{path}: line {number}: more than {MAX_ROW_BYTES} bytes (expected one row)")
                yield number, _decoded(path, number, raw)
    except OSError as error:
        raise UnreadableInput(f"{path}: {reason(error)} (expected {FORMS})") from None


def _table_rows(path: Path, *, delimiter: str) -> Iterator[Row]:
    """Rows of a table whose first line names the columns; an empty cell is an absent value."""
    limit = csv.field_size_limit(MAX_CSV_FIELD)
    try:
        table = csv.reader((text for _, text in lines(path)), delimiter=delimiter, strict=True)
        header = next(table, None)
        if not header or len(set(header)) < len(header):
            raise UnreadableInput(f"{path}: line 1: expected the names of the columns, each once")
        for cells in table:
            if len(cells) > len(header):
                raise UnreadableInput(f"{path}: line {table.line_num}: {len(cells)} cells for {len(header)} columns")
            if any(cells):
                said = {name: cell for name, cell in zip(header, cells, strict=False) if cell}
                yield Row(line=table.line_num, data=_with_lists(path, table.line_num, said))
    except csv.Error as error:
        raise UnreadableInput(f"{path}: not a table ({short(error)})") from None
    finally:
        csv.field_size_limit(limit)


def _with_lists(path: Path, number: int, said: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = dict(said)
    for name in LISTS:
        if found.get(name, "").startswith("["):
            found[name] = _json(path, number, found[name])
    return found


def _parquet_rows(path: Path) -> Iterator[Row]:
    """Rows, some at a time. The footer tells how large each row group is, so a bomb is refused before it is opened."""
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UnreadableInput(f"{path}: Parquet needs the package pyarrow (pip install pyarrow)") from None
    number, expanded, allowed = 0, 0, MAX_BATCH_BYTES + MAX_EXPANSION * path.stat().st_size
    broken: tuple[type[Exception], ...] = (arrow.ArrowException, OSError, MemoryError, ValueError, OverflowError)
    try:
        with parquet.ParquetFile(path, read_dictionary=_texts(parquet, arrow, path)) as file:
            for group in range(file.metadata.num_row_groups):
                size = file.metadata.row_group(group).total_byte_size
                if not 0 <= size <= MAX_GROUP_BYTES:
                    raise UnreadableInput(
                        f"{path}: row group {group}: {size} bytes uncompressed (expected at most {MAX_GROUP_BYTES})"
                    )
                step = min(PARQUET_ROWS, max(1, MAX_BATCH_BYTES // max(1, size)))
                for batch in file.iter_batches(step, row_groups=[group], use_threads=False):
                    for place in range(batch.num_rows):
                        (item,) = batch.slice(place, 1).to_pylist()
                        number, expanded = number + 1, expanded + weight(item)
                        if expanded > allowed:
                            raise UnreadableInput(f"{path}: row {number}: {expanded} bytes from so small a file")
                        said = {key: value for key, value in item.items() if value is not None}
                        yield Row(line=number, data=said)
    except UnreadableInput:
        raise
    except broken as error:
        raise UnreadableInput(f"{path}: not Parquet ({short(error)})") from None


def _texts(parquet: Any, arrow: Any, path: Path) -> list[str]:
    """The columns of text: read as dictionaries, a value that stands in every row is in the memory once."""
    known = (arrow.string(), arrow.large_string(), arrow.binary(), arrow.large_binary())
    return [field.name for field in parquet.read_schema(path) if field.type in known]


def weight(value: Any) -> int:
    """Characters of text and eight for anything else."""
    if isinstance(value, dict):
        return sum(map(weight, cast(dict[str, Any], value).values()))
    if isinstance(value, list):
        return sum(map(weight, cast(list[Any], value)))
    return len(value) if isinstance(value, str | bytes) else 8


def _decoded(path: Path, number: int, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableInput(f"{path}: line {number}: byte {error.start}: not UTF-8 (expected {FORMS})") from None


def _head(path: Path) -> bytes:
    try:
        with opened(path, expected=FORMS) as file:
            return file.read(4096)
    except OSError as error:
        raise UnreadableInput(f"{path}: {reason(error)} (expected {FORMS})") from None


def _list(path: Path) -> list[Any]:
    value = json_of(path, limit=MAX_LIST_BYTES)
    assert isinstance(value, list)
    return cast(list[Any], value)


def _json(path: Path, number: int, text: str) -> Any:
    if json_memory(text) > MAX_ROW_MEMORY:
        raise UnreadableInput(f"{path}: line {number}: more values than fit into the memory (expected one row)")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{path}: line {number}: not JSON ({why_not(error)})") from None


def _object(path: Path, place: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UnreadableInput(f"{path}: {place}: expected a JSON object, found {kind_of(value)}")
    return cast(Mapping[str, Any], value)
