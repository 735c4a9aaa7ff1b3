"""What one rank has written into a recording, read back row by row."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finitune.finding import number
from finitune.recorded_rows import MAX_MEMORY, json_memory, refuse_future, rows_of, wrong_field
from finitune.series import Series, Signals
from finitune.signals import SIGNALS

RANK_FILE = re.compile(r"rank([0-9]{5})\.jsonl")
MOST_BESIDE = 64
"""Optimizers of which own signals are kept."""
OF_ONE_OPTIMIZER = ("loss", "grad_norm", "lr", "update_ratio", "first_update_ratio", "clip_factor")
"""Signals of the optimizer that steps first in a step. They say nothing of an incident of one that steps beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """What one rank wrote."""

    rank: int
    signals: Mapping[str, Series]
    events: list[Mapping[str, Any]]
    launch: str = ""
    """Which `finitune run` began it."""
    beside: Mapping[str, Signals] = field(default_factory=dict[str, Signals])
    """Of optimizers by their name, in the steps in which another one stepped first: `OF_ONE_OPTIMIZER`."""

    def signals_of(self, event: Mapping[str, Any]) -> Signals:
        """As the optimizer of an incident has them in its step."""
        own = self.beside.get(str(event.get("optimizer")))
        if own is None or math.isnan(own["loss"].at(event["step"])):
            return self.signals
        return {**self.signals, **own}


def read_rank(path: Path, problems: list[str], *, refuse: bool) -> Rank:
    match = RANK_FILE.fullmatch(path.name)
    assert match
    signals = {name: Series() for name in SIGNALS}
    beside: dict[str, dict[str, Series]] = {}
    events: list[Mapping[str, Any]] = []
    newest, room, lost, launch = -(2**62), MAX_MEMORY, 0, ""
    for line, row in rows_of(path, problems):
        if row.get("kind") == "open":
            launch = str(row.get("launch") or "")
            if refuse:
                refuse_future(path, row)
        if row.get("kind") == "gap":
            rows = row.get("rows")
            lost += rows if isinstance(rows, int) else 1
        step = row.get("step")
        if not isinstance(step, int) or isinstance(step, bool) or abs(step) >= 2**62:
            continue
        if row.get("kind") == "event" and isinstance(row.get("event"), str):
            wrong = wrong_field(row)
            if wrong is not None:
                problems.append(f"{path}: step {step}: {row['event']:.40}: {wrong}; it was left out")
                continue
            room -= json_memory(line)
            if room < 0:
                problems.append(f"{path}: step {step}: more events than fit into the memory; the rest was left out")
                break
            events.append(row)
        elif row.get("kind") == "step":
            if step < newest:  # a resumed run: what came after this step never happened
                signals = _until(step, signals)
                beside = {optimizer: _until(step, own) for optimizer, own in beside.items()}
            newest = step
            _add(step, row, signals)
        elif row.get("kind") == "beside" and len(beside) < MOST_BESIDE:
            name = str(row.get("optimizer"))
            _add(step, row, beside.setdefault(name, {name: Series() for name in OF_ONE_OPTIMIZER}))
    if lost:
        problems.append(f"{path}: {lost} rows could not be written while the run went on, as on a full disk")
    return Rank(rank=int(match[1]), signals=signals, events=events, launch=launch, beside=beside)


def _until(step: int, signals: Signals) -> dict[str, Series]:
    return {name: series.until(step) for name, series in signals.items()}


def _add(step: int, row: Mapping[str, Any], signals: Signals) -> None:
    for name, series in signals.items():
        if (value := number(row.get(name))) is not None:
            series.add(step, value)
