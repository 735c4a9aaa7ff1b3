"""What a log holds: the attempts of a run with the line of each value, and the messages that were printed."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from finitune.facts import Facts
from finitune.series import Series, Signals


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One known message or printed fact: its kind (a name of ours), its text, and where it stands (lines from 1)."""

    kind: str
    text: str
    line: int
    file: str

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


class Trace:
    """One signal of one attempt: steps that increase, values, and the line of each."""

    __slots__ = ("lines", "steps", "values")

    def __init__(self) -> None:
        self.steps, self.values, self.lines = array("q"), array("d"), array("q")

    def add(self, step: int, value: float, line: int) -> None:
        """Append; a step seen before replaces its value, and what came after it is dropped."""
        steps, values, lines = self.steps, self.values, self.lines
        while steps and steps[-1] >= step:
            steps.pop()
            values.pop()
            lines.pop()
        steps.append(step)
        values.append(value)
        lines.append(line)

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
    run: str = ""
    """Its name, where the file holds several runs side by side."""
    traces: dict[str, Trace] = field(default_factory=dict[str, Trace])
    """Names of signals as in a recording, and `eval_loss`."""
    last_step: int = 0
    last_epoch: float = -math.inf
    pending: bool = False
    """The newest step was skipped, and its row may still come."""
    progress: tuple[int, int] = (0, 0)
    """Step and skipped steps of DeepSpeed's last line about them."""
    epochs: list[float] = field(default_factory=list[float])
    """Of the first two rows, where they print it."""
    begins: bool = False
    """The first row has a step of its own, and that is the first."""
    numbered: bool = False
    """The log says the step of its rows; else rows are counted."""
    rewards: bool = False
    """Reinforcement learning, whose loss may be 0."""

    def add(self, name: str, step: int, value: float, line: int) -> None:
        trace = self.traces.get(name)
        if trace is None:
            trace = self.traces[name] = Trace()
        trace.add(step, value, line)

    def trace(self, name: str) -> Trace:
        return self.traces.get(name) or Trace()

    @property
    def counted(self) -> int:
        """Steps up to the last one; one more where the first has the number 0."""
        return self.last_step + any(len(trace) and trace.steps[0] == 0 for trace in self.traces.values())

    @property
    def signals(self) -> Signals:
        return {name: trace.series() for name, trace in self.traces.items() if name not in ("eval_loss", "kl")}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReading:
    """All logs of one run: its attempts in order, what was printed, and the facts among it."""

    attempts: Sequence[Attempt]
    messages: Sequence[Message]
    facts: Facts
    not_checked: Sequence[str] = ()

    @property
    def signals(self) -> Signals:
        """Those of the last attempt."""
        return self.attempts[-1].signals if self.attempts else {}
