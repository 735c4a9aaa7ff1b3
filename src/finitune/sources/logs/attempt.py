"""What a log said: signals with the line of each value, facts and messages, each with its place."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from finitune.facts import Facts
from finitune.series import Series, Signals
from finitune.sources.text import without_links

LONGEST_TEXT = 200
"""So much of a message is kept; what comes from a log is data, and there may be any amount of it."""
MOST_OF_A_KIND = 100
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Characters that steer a terminal or turn the direction of writing."""
MOST_ROWS = 2_000_000
MOST_ATTEMPTS = 200
EXACT_ROWS = 150_000
"""Rows that are read one by one are all read up to here; after it one in `ONE_IN`, and the first that is not finite."""
ONE_IN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message or fact: its kind (a name of ours), its text as printed, and where it stands (lines from 1)."""

    kind: str
    text: str
    line: int
    file: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A row of a line that its words alone decide how to read: other numbers in them give other numbers here."""

    numbers: Mapping[str, float]
    """By the names of the row, and `epoch`."""
    step: int | None
    skipped: bool = False

    def is_like(self, other: Heard) -> bool:
        """Of the same kind, with the same names."""
        names = self.numbers.keys() == other.numbers.keys()
        return names and self.skipped == other.skipped and (self.step is None) == (other.step is None)


class Trace:
    """One signal of one attempt: steps that increase, values, and the line of each."""

    __slots__ = ("lines", "steps", "values")

    def __init__(self) -> None:
        self.steps, self.values, self.lines = array("q"), array("d"), array("q")

    def add(self, step: int, value: float, line: int) -> None:
        """Append; a step seen before is said anew, and what came after it is dropped."""
        steps = self.steps
        while steps and steps[-1] >= step:
            steps.pop()
            self.values.pop()
            self.lines.pop()
        steps.append(step)
        self.values.append(value)
        self.lines.append(line)

    def extend(self, steps: array[int], values: array[float], lines: array[int]) -> None:
        """Append many whose steps increase and are new."""
        self.steps.extend(steps)
        self.values.extend(values)
        self.lines.extend(lines)

    def __len__(self) -> int:
        return len(self.steps)

    def series(self) -> Series:
        return Series(self.steps, self.values)

    def line_at(self, step: int) -> int:
        """The line of the newest value not later than `step`; 0 when there is none."""
        index = int(np.searchsorted(np.asarray(self.steps), step, side="right")) - 1
        return self.lines[index] if index >= 0 else 0

    def has(self, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether there is a value at exactly these steps."""
        return self._found(steps)[1]

    def at(self, steps: npt.NDArray[np.int64], absent: float) -> npt.NDArray[np.float64]:
        """Values at exactly these steps, `absent` where the step has none."""
        index, found = self._found(steps)
        return np.where(found, np.asarray(self.values)[index], absent) if len(self) else np.full(len(steps), absent)

    def _found(self, steps: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        own = np.asarray(self.steps, dtype=np.int64)
        if not len(own):
            return np.zeros(len(steps), dtype=np.int64), np.zeros(len(steps), dtype=bool)
        index = np.minimum(np.searchsorted(own, steps), len(own) - 1)
        return index, own[index] == steps


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One run of the trainer in one file; a log of restarts holds several."""

    file: str
    traces: dict[str, Trace] = field(default_factory=dict[str, Trace])
    """Names of signals as in a recording, and `eval_loss`."""
    last_step: int = 0
    last_epoch: float = -math.inf
    pending: bool = False
    """The newest step was told of (it was skipped) and its row may still come."""
    progress: tuple[int, int] = (0, 0)
    """Step and skipped steps of DeepSpeed's last line about them."""
    epochs: list[float] = field(default_factory=list[float])
    """Of the first two rows, where they tell it."""
    begins: bool = False
    """The first row told a step of its own, and that was the first."""
    rewards: bool = False
    """Reinforcement learning, whose loss may be 0 in earnest."""

    def add(self, name: str, step: int, value: float, line: int) -> None:
        trace = self.traces.get(name)
        if trace is None:
            trace = self.traces[name] = Trace()
        trace.add(step, value, line)

    def trace(self, name: str) -> Trace:
        return self.traces.get(name) or Trace()

    @property
    def signals(self) -> Signals:
        return {name: trace.series() for name, trace in self.traces.items() if name not in ("eval_loss", "kl")}


class Notes:
    """Collects what the formats read from one file, in the order of its lines."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.attempts = [Attempt(file=file)]
        self.said: list[Said] = []
        self.rows = 0
        self.cut = ""
        """Why the rest of the file was not read."""
        self.rank = ""
        """The rank that says the line which is being read, where a launcher tells it."""
        self.heard: list[Heard] = []
        """Rows of the line which is being read, where a line like it may follow."""
        self._hears = False
        self.told: list[tuple[str, str]] = []
        """What that line said besides, each with its kind."""
        self.single = 0
        """Rows that were read one by one."""
        self.passed_over = False
        self._firsts: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    @property
    def attempt(self) -> Attempt:
        return self.attempts[-1]

    def begin_line(self, rank: str = "", *, hear: bool = False) -> None:
        """What is noted from here on stands in another line, which a launcher marks with `rank`; `hear` its rows."""
        self.rank, self._hears = rank, hear
        self.heard.clear()
        self.told.clear()

    def row(
        self,
        values: Mapping[str, float],
        line: int,
        *,
        step: int | None = None,
        epoch: float | None = None,
        alike: bool = False,
    ) -> None:
        """Numbers of one step. Without a step of its own it is the next one.

        What ranks say beside the first is left out, unless it is not finite: then it stands for that step. `alike`: a
        line of the same words with other numbers is read in the same way (see `alike`).
        """
        self.rows += 1
        self.single += 1
        if self.rows > MOST_ROWS:
            return
        now = self.attempts[-1]
        if self.rank and not self.first("row", self.rank):
            if all(map(math.isfinite, values.values())):
                return
            step, alike = now.last_step, False
        if epoch is not None and not math.isfinite(epoch):
            epoch = None
        if (epoch is not None and epoch < now.last_epoch - 1e-9) or (step is not None and step < now.last_step - 1):
            now = self._restart()
        if "eval_loss" in values and "loss" not in values:
            now.add("eval_loss", max(step or 0, now.last_step), values["eval_loss"], line)
            return
        if alike and self._hears:
            self.heard.append(Heard(numbers=values if epoch is None else {**values, "epoch": epoch}, step=step))
        now.begins = now.begins or (step == 1 and not now.traces)
        if epoch is not None and len(now.epochs) < 2:
            now.epochs.append(epoch)
        if step is None or (now.pending and step < now.last_step):
            step = now.last_step if now.pending else now.last_step + 1
        if "skipped" not in values and "skipped" in now.traces and not now.pending:
            now.add("skipped", step, 0.0, line)
        now.pending = False
        now.last_step = step
        if epoch is not None:
            now.last_epoch = epoch
        for name, value in values.items():
            now.add(name, step, value, line)

    def _restart(self) -> Attempt:
        if len(self.attempts) < MOST_ATTEMPTS:
            self.attempts.append(Attempt(file=self.file))
        return self.attempts[-1]

    @property
    def full(self) -> bool:
        """Whether enough was read one by one: from here on only one row in `ONE_IN` is."""
        return self.single >= EXACT_ROWS

    def first(self, kind: str, rank: str) -> bool:
        """Whether `rank` is the one that was the first to tell of this; what others say is said again."""
        return self._firsts.setdefault(kind, rank) == rank

    def successive(
        self,
        heard: Heard,
        told: Sequence[tuple[str, str]],
        columns: Mapping[str, array[float]],
        steps: array[int] | None,
        lines: array[int],
    ) -> int:
        """As `row` or `skipped` for rows that are like one that was heard: its numbers by name, and steps of their own.

        Returns how many were noted: those before a row that may begin a new attempt or belong to a step told of.
        """
        now, count = self.attempts[-1], len(lines)
        if now.pending and not heard.skipped:
            return 0
        if (epochs := columns.get("epoch")) is not None:
            count = _rising(np.asarray(epochs), now.last_epoch)
        if steps is None:
            steps = array("q", range(now.last_step + 1, now.last_step + 1 + count))
        else:
            count = min(count, _rising(np.asarray(steps), now.last_step + 1, by=1))
        kept = max(0, min(count, MOST_ROWS - self.rows))
        self.rows += count
        if not kept:
            return count
        now.last_step = steps[kept - 1]
        if epochs is not None:
            now.last_epoch = epochs[kept - 1]
            now.epochs.extend(epochs[: min(kept, 2 - len(now.epochs))])
        if heard.skipped or "skipped" in now.traces:
            columns = {**columns, "skipped": array("d", [float(heard.skipped)]) * kept}
        for name, values in columns.items():
            if name != "epoch":
                now.traces.setdefault(name, Trace()).extend(steps[:kept], values[:kept], lines[:kept])
        for kind, text in told:
            for line in lines[:kept]:
                self.say(kind, text, line)
        return count

    def skipped(self, line: int, scale: float | None) -> None:
        """A step whose update was discarded; a row that follows at once belongs to it."""
        self.rows += 1
        if self.rows > MOST_ROWS:
            return
        if self._hears:
            self.heard.append(Heard(numbers={} if scale is None else {"loss_scale": scale}, step=None, skipped=True))
        now = self.attempts[-1]
        now.last_step += 1
        now.pending = True
        now.add("skipped", now.last_step, 1.0, line)
        if scale is not None:
            now.add("loss_scale", now.last_step, scale, line)

    def say(self, kind: str, text: str, line: int) -> None:
        """A message or fact; of each kind the first hundred are kept, and no link in them."""
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        self.told.append((kind, text))
        if count <= MOST_OF_A_KIND:
            seen = _UNSEEN.sub(" ", without_links(text))[:LONGEST_TEXT]
            self.said.append(Said(kind=kind, text=seen, line=line, file=self.file))

    def left_out(self) -> Iterator[str]:
        """What was not read, in words."""
        if self.rows > MOST_ROWS:
            yield f"{self.file}: only the first {MOST_ROWS:,} rows were read"
        if self.cut:
            yield f"{self.file}: {self.cut}"
        if self.passed_over:
            yield f"{self.file}: after {EXACT_ROWS:,} rows one in {ONE_IN} was read, and the first that is not finite"
        if len(self.attempts) == MOST_ATTEMPTS:
            yield f"{self.file}: restarts after the first {MOST_ATTEMPTS} were not told apart"

    def count(self, kind: str) -> int:
        return self._counts.get(kind, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """All logs of one question: their attempts in order, what was said, and the facts that were printed."""

    attempts: Sequence[Attempt]
    said: Sequence[Said]
    facts: Facts
    not_checked: Sequence[str] = ()

    @property
    def signals(self) -> Signals:
        """Those of the last attempt."""
        return self.attempts[-1].signals if self.attempts else {}


def _rising(values: npt.NDArray[Any], least: float, by: int = 0) -> int:
    """How many values at the beginning are `least` or more, each no less than `by` above the one before."""
    rises = np.concatenate((values[:1] >= least, values[1:] >= values[:-1] + by))
    return len(rises) if rises.all() else int(np.argmin(rises))


def number_in(text: bytes) -> float | None:
    """The float that these bytes spell, `nan` and `inf` included; None for anything else."""
    try:
        return float(text)
    except ValueError:
        return None
