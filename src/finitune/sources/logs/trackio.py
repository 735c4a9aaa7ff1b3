"""The database (SQLite) of a project of Trackio, or of MLflow's store: its newest run, or the one that is named."""

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

RUNS = "SELECT run_name, run_name FROM metrics GROUP BY run_name ORDER BY max(timestamp) DESC, max(id) DESC LIMIT ?"
ROWS = "SELECT step, metrics FROM metrics WHERE run_name = ? AND length(metrics) < ? ORDER BY id"

OF_MLFLOW = "SELECT run_uuid, run_uuid FROM metrics GROUP BY run_uuid ORDER BY max(timestamp) DESC LIMIT ?"
OF_MLFLOW_NAMED = (
    "SELECT m.run_uuid, r.name FROM metrics m LEFT JOIN runs r ON r.run_uuid = m.run_uuid GROUP BY m.run_uuid "
    "ORDER BY max(m.timestamp) DESC LIMIT ?"
)
MLFLOW_ROWS = "SELECT step, key, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp, step"
MOST_RUNS = 1000
"""So many of the newest are known by name."""

SAID = 5
"""So many other runs are named."""

LARGEST = 1.7976931348623157e308
"""What MLflow stores for an infinite value; of NaN it stores a flag."""


def recognises(head: bytes) -> bool:
    return head.startswith(MAGIC)


def read(path: Path, log: ParsedLog, run: str = "") -> None:
    """The newest run, or the one of this name. The line of a value is the number of its row in the run.

    Raises UnreadableInput for another database, and for a run that is not in it.
    """
    metrics = Metrics(log)
    try:
        with TemporaryDirectory(prefix="finitune-") as folder:
            _rows(_whole(path, Path(folder)), metrics, path, run)
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


def _rows(path: Path, metrics: Metrics, named: Path, run: str) -> None:
    left = itertools.count(MOST_WORK, -1)
    how = "mode=ro" if path.with_name(f"{path.name}-wal").is_file() else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{how}", uri=True)) as database:
        database.set_progress_handler(lambda: next(left) < 0, 1_000_000)  # a view may go on without end
        mlflow = "run_uuid" in _columns(database, "metrics")
        sql = RUNS if not mlflow else OF_MLFLOW_NAMED if "name" in _columns(database, "runs") else OF_MLFLOW
        runs: list[tuple[Any, Any]] = database.execute(sql, (MOST_RUNS,)).fetchall()
        if not runs:
            return
        key = _chosen(runs, metrics, named, run)
        _values_of_mlflow(database, key, metrics) if mlflow else _values(database, key, metrics)


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    return {str(column[1]) for column in database.execute("SELECT * FROM pragma_table_info(?)", (table,))}


def _chosen(runs: list[tuple[Any, Any]], metrics: Metrics, named: Path, run: str) -> Any:
    """The key of the run that is asked for, else of the newest; that there are others is said."""
    names = [short(str(name or key)) for key, name in runs]
    if run:
        found = next((key for key, name in runs if run in (str(key), str(name))), None)
        if found is None:
            raise UnreadableInput(f"{named}: no run {short(run)} in it (expected one of {_listed(names)})")
        return found
    if len(runs) > 1:
        others = f"name another as {named.name}:RUN ({_listed(names[1:])})"
        metrics.log.cut = metrics.log.cut or f"of {len(runs)} runs only the newest was read, {names[0]}; {others}"
    return runs[0][0]


def _listed(names: list[str]) -> str:
    return ", ".join([*names[:SAID], *([f"and {len(names) - SAID} more"] if len(names) > SAID else [])])


def _values(database: sqlite3.Connection, run: Any, metrics: Metrics) -> None:
    rows: Any = database.execute(ROWS, (run, LONGEST))
    for number, (step, text) in enumerate(rows, start=1):
        if not metrics.record(_numbers(text), step if isinstance(step, int) else number, number):
            break


def _values_of_mlflow(database: sqlite3.Connection, run: Any, metrics: Metrics) -> None:
    rows: Any = database.execute(MLFLOW_ROWS, (run,))
    for number, (step, tag, value, nan) in enumerate(rows, start=1):
        said = number_of(value)
        if said is None or not isinstance(tag, str) or not isinstance(step, int):
            continue
        said = math.nan if nan else math.copysign(math.inf, said) if abs(said) >= LARGEST else said
        if not metrics.add(step, tag, said, number):
            break


def _numbers(text: object) -> dict[str, float]:
    try:
        said: Any = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return {}
    held = cast(dict[str, Any], said) if isinstance(said, dict) else {}
    return {key: number for key, value in held.items() if (number := number_of(value)) is not None}
