"""CSV with a column for the loss: Lightning's `metrics.csv`, an export of W&B, or what a plain loop wrote."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from finitune.finding import UnreadableInput
from finitune.sources.logs.parsed_log import ParsedLog
from finitune.sources.text import short

COLUMNS = {
    "loss": r"(train(ing)?[_/ ]?)?loss(_step)?|lm[_ ]loss",
    "grad_norm": r"(train[_/ ])?(grad(ient)?[_ ]?norm|grad_2\.0_norm_total)(_step)?",
    "lr": r"lr|learning_rate|lr-.*",
    "loss_scale": r"(loss_)?scale",
    "eval_loss": r"(eval|val|valid|validation|test)[_/ ]?loss(_epoch)?",
}
PANEL = " - "
"""A panel of W&B exports each column as `run - metric`, with `run - metric__MIN` and `__MAX` beside it."""

_STEP = re.compile(r"(train(er)?/)?_?(global[_ ])?(step|iter(ation)?)s?", re.IGNORECASE)
LONGEST_HEADER = 8192
MOST_COLUMNS = 2000
LONGEST_TITLE = 300


def recognises(head: bytes) -> bool:
    first = head[:LONGEST_HEADER].partition(b"\n")[0].strip()
    if b"," not in first or re.search(rb"[{}=:\[\]\x1b\x00]", first):
        return False
    try:
        return "loss" in _columns(next(csv.reader([first.decode(errors="replace")]), list[str]()))
    except csv.Error:
        return False


def read(path: Path, log: ParsedLog) -> None:
    """Raises UnreadableInput where the file is no CSV."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            rows = csv.reader(file)
            header = next(rows, list[str]())
            columns = _columns(header)
            runs = {title.rpartition(PANEL)[0] for title in header[:MOST_COLUMNS] if PANEL in title}
            if len(runs) > 1:
                log.cut = f"of {len(runs)} runs only the first was read"
            step_at = next((i for i, name in enumerate(header[:MOST_COLUMNS]) if _STEP.fullmatch(name.strip())), None)
            for cells in rows:
                _row(cells, columns, step_at, rows.line_num, log)
    except csv.Error as error:
        if log.rows:
            log.cut = f"not CSV ({short(error)}) after {log.rows:,} rows"
            return
        raise UnreadableInput(f"{path}: not CSV ({short(error)})") from None


def _columns(header: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, pattern in COLUMNS.items():
        for index, title in enumerate(header[:MOST_COLUMNS]):
            if re.fullmatch(pattern, title.strip()[:LONGEST_TITLE].rpartition(PANEL)[2], re.IGNORECASE):
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
