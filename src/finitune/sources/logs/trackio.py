"""The database (SQLite) of a project of Trackio, or of MLflow's store: its newest run."""

from __future__ import annotations

import itertools
import json
import math
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from finitune.finding import UnreadableInput
from finitune.sources.logs.metrics import Metrics, number_of
from finitune.sources.logs.parsed_log import ParsedLog
from finitune.sources.text import short

MAGIC = b"SQLite format 3\0"
LONGEST = 2**16
"""Characters of one row of metrics."""

MOST_WORK = 500
"""Million instructions of SQLite; a hundred thousand rows take three."""

NEWEST = "SELECT run_name FROM metrics ORDER BY timestamp DESC, id DESC LIMIT 1"
ROWS = "SELECT step, metrics FROM metrics WHERE run_name = ? AND length(metrics) < ? ORDER BY id"


OF_MLFLOW = "SELECT run_uuid FROM metrics ORDER BY timestamp DESC LIMIT 1"
MLFLOW_ROWS = "SELECT step, key, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, step"
LARGEST = 1.7976931348623157e308
"""What MLflow stores for an infinite value; of NaN it stores a flag."""


def recognises(head: bytes) -> bool:
    return head.startswith(MAGIC)


def read(path: Path, log: ParsedLog) -> None:
    """The line of a value is the number of its row in the run. Raises UnreadableInput for another database."""
    metrics = Metrics(log)
    try:
        with TemporaryDirectory(prefix="finitune-") as folder:
            _rows(_whole(path, Path(folder)), metrics)
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        raise UnreadableInput(f"{path}: no database of Trackio or MLflow ({short(error)})") from None
    metrics.write()


def _whole(path: Path, folder: Path) -> Path:
    """The database itself; where it has a journal of what is not in it yet, a copy, because reading would write."""
    journal = path.with_name(f"{path.name}-wal")
    if not journal.is_file() or journal.is_symlink():
        return path
    shutil.copyfile(journal, folder / journal.name)
    return Path(shutil.copyfile(path, folder / path.name))


def _rows(path: Path, metrics: Metrics) -> None:
    left = itertools.count(MOST_WORK, -1)
    how = "mode=ro" if path.with_name(f"{path.name}-wal").is_file() else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{how}", uri=True)) as database:
        database.set_progress_handler(lambda: next(left) < 0, 1_000_000)  # a view may go on without end
        if any(column[1] == "run_uuid" for column in database.execute("PRAGMA table_info(metrics)")):
            _rows_of_mlflow(database, metrics)
            return
        newest: Any = database.execute(NEWEST).fetchone()
        name = newest[0] if newest else None
        others: Any = database.execute("SELECT count(DISTINCT run_name) FROM metrics").fetchone()[0]
        rows: Any = database.execute(ROWS, (name, LONGEST))
        for number, (step, text) in enumerate(rows, start=1):
            if not metrics.record(_numbers(text), step if isinstance(step, int) else number, number):
                break
        if isinstance(others, int) and others > 1:
            metrics.log.cut = metrics.log.cut or f"of {others} runs only the newest was read, {short(name)}"


def _rows_of_mlflow(database: sqlite3.Connection, metrics: Metrics) -> None:
    newest: Any = database.execute(OF_MLFLOW).fetchone()
    others: Any = database.execute("SELECT count(DISTINCT run_uuid) FROM metrics").fetchone()[0]
    rows: Any = database.execute(MLFLOW_ROWS, (newest[0] if newest else None,))
    for number, (step, tag, value, nan) in enumerate(rows, start=1):
        said = number_of(value)
        if said is None or not isinstance(tag, str) or not isinstance(step, int):
            continue
        said = math.nan if nan else math.copysign(math.inf, said) if abs(said) >= LARGEST else said
        if not metrics.add(step, tag, said, number):
            break
    if isinstance(others, int) and others > 1:
        metrics.log.cut = metrics.log.cut or f"of {others} runs only the newest was read, {short(newest[0])}"


def _numbers(text: object) -> dict[str, float]:
    try:
        said: Any = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    held = cast(dict[str, Any], said) if isinstance(said, dict) else {}
    return {key: number for key, value in held.items() if (number := number_of(value)) is not None}
