"""The metrics of a run by their tags and steps, as experiment trackers keep them -> the rows of a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from finitune.sources.logs.names import of_policies, signal_of
from finitune.sources.logs.parsed_log import ParsedLog

MOST_STEPS = 500_000
STEPS = ("train/global_step", "trainer/global_step", "global_step")
"""Metrics that hold the framework's own step; a tracker counts its calls."""


@dataclass(slots=True)
class Metrics:
    """Values by step while a file of a tracker is read, each with the number of its record."""

    log: ParsedLog
    rows: dict[int, dict[str, float]] = field(default_factory=dict[int, dict[str, float]])
    places: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, step: int, tag: str, value: float, place: int) -> bool:
        """False where there are more steps than are read."""
        if len(self.rows) >= MOST_STEPS and step not in self.rows:
            self.log.cut = f"only the first {MOST_STEPS:,} steps were read"
            return False
        name = signal_of(tag)
        if name:
            self.rows.setdefault(step, {})[name] = value
            self.places.setdefault(step, place)
        self.log.attempt.rewards |= of_policies(tag)
        return True

    def record(self, said: Mapping[str, float], step: int, place: int) -> bool:
        """What was logged at once; its step is the framework's own, where that was logged too."""
        own = next((said[name] for name in STEPS if name in said and said[name] >= 0), None)
        step = int(own) if own is not None and own < 2**53 else step
        return all(self.add(step, tag, value, place) for tag, value in said.items())

    def write(self) -> None:
        """The rows in the order of their steps."""
        for step in sorted(self.rows):
            values, place = self.rows[step], self.places[step]
            if "eval_loss" in values:
                self.log.row({"eval_loss": values.pop("eval_loss")}, place, step=step)
            if "loss" in values:
                self.log.row(values, place, step=step)


def number_of(value: object) -> float | None:
    """A float as JSON has it, "NaN" and "Infinity" included."""
    if isinstance(value, str) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
