"""CSV with a column for the loss: Lightning's `metrics.csv`, an export of W&B, or what a plain loop wrote."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from finitune.finding import UnreadableInput
from finitune.sources.logs.names import signal_of
from finitune.sources.logs.parsed_log import ParsedLog
from finitune.sources.text import short

SCALE = "scale"
"""Of the loss, in a table."""
PANEL = " - "
"""A panel of W&B exports each column as `run - metric`, with `run - metric__MIN` and `__MAX` beside it."""

_STEP = re.compile(r"(train(er)?/)?_?(global[_ ])?(step|iter(ation)?)s?", re.IGNORECASE)
LONGEST_HEADER = 8192
MOST_COLUMNS = 2000
MOST_RUNS = 50


def recognises(head: bytes) -> bool:
    first = head[:LONGEST_HEADER].partition(b"\n")[0].strip()
    if b"," not in first or re.search(rb"[{}=:\[\]\x1b\x00]", first):
        return False
    try:
        return "loss" in _columns(next(csv.reader([first.decode(errors="replace")]), list[str]()))
    except csv.Error:
        return False


def read(path: Path, log: ParsedLog, run: str = "") -> None:
    """Every run of a panel, or the one of this name.

    Raises UnreadableInput where the file is no CSV, and for a run that is not in it.
    """
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = csv.reader(file)
            header = next(rows, list[str]())[:MOST_COLUMNS]
            runs = list(dict.fromkeys(title.rpartition(PANEL)[0] for title in header if PANEL in title)) or [""]
            if run and run not in runs:
                raise UnreadableInput(f"{path}: no run {short(run)} in it (expected one of {short(', '.join(runs))})")
            runs = [run] if run else runs
            if len(runs) > MOST_RUNS:
                log.cut = f"of {len(runs)} runs only the first {MOST_RUNS} were read"
            step_at = next((i for i, name in enumerate(header) if _STEP.fullmatch(name.strip())), None)
            for one in runs[:MOST_RUNS]:
                if len(runs) > 1 or run:
                    log.begin(one)
                    file.seek(0)
                    rows = csv.reader(file)
                    next(rows)
                columns = _columns(header, one)
                for cells in rows:
                    _row(cells, columns, step_at, rows.line_num, log)
    except csv.Error as error:
        if log.rows:
            log.cut = f"not CSV ({short(error)}) after {log.rows:,} rows"
            return
        raise UnreadableInput(f"{path}: not CSV ({short(error)})") from None


def _columns(header: Sequence[str], run: str | None = None) -> dict[str, int]:
    """Where each signal stands, of one run of a panel."""
    found: dict[str, int] = {}
    for index, title in enumerate(header[:MOST_COLUMNS]):
        of, _, metric = title.rpartition(PANEL)
        name = "loss_scale" if metric.strip() == SCALE else signal_of(metric)
        if name and run in (None, of):
            found.setdefault(name, index)
    return found


def _row(cells: Sequence[str], columns: dict[str, int], step_at: int | None, line: int, log: ParsedLog) -> None:
    values: dict[str, float] = {}
    for name, index in columns.items():
        try:
            values[name] = float(cells[index])
        except (ValueError, IndexError):
            continue
    step = None
    if step_at is not None and step_at < len(cells) and cells[step_at].strip().isdecimal():
        step = int(cells[step_at][:18])
    if "loss" in values:
        values.pop("eval_loss", None)
    if values.keys() & {"loss", "eval_loss"}:
        log.row(values, line, step=step)
