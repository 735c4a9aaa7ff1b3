"""What every story is shown with: commands that ended, steps that passed or failed, the terminal and its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 100
ENVIRONMENT = {
    "TQDM_DISABLE": "1",
    "NO_COLOR": "1",
    # Threads that wait must not spin: with a second job on the machine that costs up to five times the time.
    "OMP_WAIT_POLICY": "passive",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A command that has ended."""

    command: str
    code: int
    output: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step as it went: what was typed, what was said, what it came to. `passed`: all that was expected."""

    title: str
    result: str
    passed: bool
    outcomes: Sequence[Outcome]

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where the story happens: its directory, and the terminal on which it is shown."""

    directory: Path
    console: Console
    steps: list[Step] = field(default_factory=list[Step])


def show(stage: Stage, outcome: Outcome, lines: Sequence[str] | None = None) -> Outcome:
    """Print what was typed and what was said; `lines` instead of all of it."""
    stage.console.print(Text(outcome.command, style="dim"), soft_wrap=True)
    for line in outcome.output.rstrip().splitlines() if lines is None else lines:
        stage.console.print(Text(f"  {line}"), soft_wrap=True)
    return outcome


def summary(steps: Sequence[Step]) -> Table:
    """The table of the steps."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("step", "", "result", "seconds"):
        table.add_column(name, justify="right" if name == "seconds" else "left", overflow="fold")
    for number, step in enumerate(steps, start=1):
        table.add_row(f"{number} {step.title}", mark(passed=step.passed), Text(step.result), f"{step.seconds:.0f}")
    return table


def mark(*, passed: bool) -> Text:
    return Text("passed", style="green") if passed else Text("FAILED", style="bold red")
