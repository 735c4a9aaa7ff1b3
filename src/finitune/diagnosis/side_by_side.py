"""Several runs beside each other: what each came to, from which step on they differ, and in which settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from finitune.diagnosis import recorded
from finitune.diagnosis.logged.incidents import diagnose_logs
from finitune.finding import Diagnosis, Printed, as_json
from finitune.recording import Recording
from finitune.series import Series
from finitune.sources import logs

SAME = 1e-6
"""Relative; what a printed number is rounded to."""
NOT_SETTINGS = ("source", "path", "file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What one run came to; steps count from 1."""

    run: str
    verdict: str
    steps: int | None
    first_bad_step: int | None
    symptom: str | None
    cause: str | None
    """The first cause of its first incident, with how sure it is."""
    last_loss: float | None
    """The newest that is finite."""
    signals: Mapping[str, Series] = field(
        default_factory=dict[str, Series], repr=False, compare=False, metadata={"json": False}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(Printed):
    """What `finitune diagnose` answers about several runs."""

    runs: Sequence[Side]
    differ_from: int | None
    """The first step at which two of the runs print different losses; None where none does."""
    settings: Mapping[str, Sequence[Any]]
    """Those that are not the same in all runs, one value for each run; None where a run says nothing of it."""
    schema: str = "finitune.comparison/1"

    @property
    def verdict(self) -> str:
        """The gravest of the runs."""
        return min((side.verdict for side in self.runs), key=["incident", "suspect", "healthy"].index)


def compare(*runs: str | Path) -> Comparison:
    """The runs beside each other: recordings, folders of trackers and trainers, or runs of a file as FILE:RUN.

    Raises UnreadableInput for a folder with neither, and FileNotFoundError for one that is not there.
    """
    read = [_read(Path(run)) for run in runs]
    settings = [said for _, _, said in read]
    names = dict.fromkeys(name for said in settings for name in said)
    different = {name: [said.get(name) for said in settings] for name in names}
    return Comparison(
        runs=[_side(str(run), diagnosis, signals) for run, (diagnosis, signals, _) in zip(runs, read, strict=True)],
        differ_from=_differ_from([signals.get("loss") or Series() for _, signals, _ in read]),
        settings={k: values for k, values in different.items() if any(one != values[0] for one in values)},
    )


def _read(run: Path) -> tuple[Diagnosis, Mapping[str, Series], dict[str, Any]]:
    """The diagnosis of one run, its signals and its settings."""
    if not any(run.glob("rank*.jsonl")):
        reading = logs.read(run)
        return diagnose_logs(run), reading.signals, _settings(as_json(reading.facts))
    recording = Recording.load(run)
    command: Any = recording.header.get("command")
    said = _settings(as_json(recording.facts))
    said |= {"command": " ".join(map(str, cast("list[Any]", command)))} if isinstance(command, list) else {}
    return recorded.diagnose(run), recording.signals, said


def _settings(facts: Mapping[str, Any]) -> dict[str, Any]:
    """`optimizer.lr` -> its value, for what is known."""
    found: dict[str, Any] = {}
    for group, held in facts.items():
        for name, value in cast("Mapping[str, Any]", held).items() if isinstance(held, Mapping) else ():
            if value is not None and name not in NOT_SETTINGS and not isinstance(value, list | dict):
                found[f"{group}.{name}"] = value
    return found


def _side(run: str, diagnosis: Diagnosis, signals: Mapping[str, Series]) -> Side:
    first = next((one for one in diagnosis.incidents if one.level == "incident"), None)
    cause = first.causes[0] if first and first.causes else None
    losses = signals.get("loss") or Series()
    finite = [float(value) for value in losses.values if math.isfinite(value)]
    return Side(
        run=run,
        verdict=diagnosis.verdict,
        steps=diagnosis.steps,
        first_bad_step=first.step if first else None,
        symptom=first.symptom if first else None,
        cause=f"{cause.cause} ({cause.strength})" if cause else None,
        last_loss=finite[-1] if finite else None,
        signals=signals,
    )


def _differ_from(losses: Sequence[Series]) -> int | None:
    by_step = [dict(zip(map(int, one.steps), map(float, one.values), strict=True)) for one in losses]
    common = sorted(set[int].intersection(*map(set, by_step))) if by_step else []
    return next((step for step in common if not all(_same(one[step], by_step[0][step]) for one in by_step)), None)


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=SAME) or (math.isnan(one) and math.isnan(other))
