"""One log file while it is read: the formats add rows, skipped steps and messages in the order of its lines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from finitune.sources.logs.attempt import Attempt, Message, Trace
from finitune.sources.text import without_links

LONGEST_TEXT = 200
"""So much of a message is kept; what comes from a log is data, and there may be any amount of it."""
MOST_OF_A_KIND = 100
MOST_ROWS = 2_000_000
MOST_ATTEMPTS = 200
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Characters that steer a terminal or turn the direction of writing."""


class ParsedLog:
    """The attempts and messages of one file so far."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.attempts = [Attempt(file=file)]
        self.messages: list[Message] = []
        self.rows = 0
        self.cut = ""
        """Why the rest of the file was not read."""
        self.rank = ""
        """The rank that printed the line which is being read, where a launcher marks it."""
        self._firsts: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    @property
    def attempt(self) -> Attempt:
        return self.attempts[-1]

    def row(
        self, values: Mapping[str, float], line: int, *, step: int | None = None, epoch: float | None = None
    ) -> None:
        """Numbers of one step. Without a step of its own it is the next one.

        Rows of ranks beside the first are left out, unless one is not finite: then it stands for that step.
        """
        self.rows += 1
        if self.rows > MOST_ROWS:
            return
        now = self.attempts[-1]
        if self.rank and not self.first("row", self.rank):
            if all(map(math.isfinite, values.values())):
                return
            step = now.last_step
        if epoch is not None and not math.isfinite(epoch):
            epoch = None
        if (epoch is not None and epoch < now.last_epoch - 1e-9) or (step is not None and step < now.last_step - 1):
            now = self._restart()
        if "eval_loss" in values and "loss" not in values:
            now.add("eval_loss", max(step or 0, now.last_step), values["eval_loss"], line)
            return
        now.numbered = now.numbered or step is not None
        now.begins = now.begins or (step == 1 and not now.traces)
        if step is None or (now.pending and step < now.last_step):
            step = now.last_step if now.pending else now.last_step + 1
        if "skipped" not in values and "skipped" in now.traces and not now.pending:
            now.add("skipped", step, 0.0, line)
        now.pending = False
        now.last_step = step
        if epoch is not None:
            now.last_epoch = epoch
            if len(now.epochs) < 2:
                now.epochs.append(epoch)
        traces = now.traces
        for name, value in values.items():
            trace = traces.get(name)
            if trace is None:
                trace = traces[name] = Trace()
            trace.add(step, value, line)

    def skipped(self, line: int, scale: float | None) -> None:
        """A step whose update was discarded; a row that follows at once belongs to it."""
        self.rows += 1
        if self.rows > MOST_ROWS:
            return
        now = self.attempts[-1]
        now.numbered = True
        now.last_step += 1
        now.pending = True
        now.add("skipped", now.last_step, 1.0, line)
        if scale is not None:
            now.add("loss_scale", now.last_step, scale, line)

    def message(self, kind: str, text: str, line: int) -> None:
        """A known message or fact; of each kind the first hundred are kept, without links."""
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count <= MOST_OF_A_KIND:
            plain = _CONTROL.sub(" ", without_links(text))
            plain = plain if len(plain) <= LONGEST_TEXT else f"{plain[: LONGEST_TEXT - 3]}..."
            self.messages.append(Message(kind=kind, text=plain, line=line, file=self.file))

    def count(self, kind: str) -> int:
        return self._counts.get(kind, 0)

    def first(self, kind: str, rank: str) -> bool:
        """Whether `rank` is the one that was the first to print this; what others print is a repetition."""
        return self._firsts.setdefault(kind, rank) == rank

    def left_out(self) -> Iterator[str]:
        """What was not read, in words."""
        if self.rows > MOST_ROWS:
            yield f"{self.file}: only the first {MOST_ROWS:,} rows were read"
        if self.cut:
            yield f"{self.file}: {self.cut}"
        if len(self.attempts) == MOST_ATTEMPTS:
            yield f"{self.file}: restarts after the first {MOST_ATTEMPTS} were not separated"

    def begin(self, run: str) -> None:
        """What follows is another run, of several side by side in one file."""
        name = _CONTROL.sub(" ", run)[:LONGEST_TEXT]
        self.attempts.append(Attempt(file=f"{self.file} ({name})", run=name))

    def _restart(self) -> Attempt:
        if len(self.attempts) < MOST_ATTEMPTS:
            now = self.attempts[-1]
            self.attempts.append(Attempt(file=now.file, run=now.run))
        return self.attempts[-1]


def number_in(text: bytes) -> float | None:
    """The float that these bytes spell, `nan` and `inf` included; None for anything else."""
    try:
        return float(text)
    except ValueError:
        return None
