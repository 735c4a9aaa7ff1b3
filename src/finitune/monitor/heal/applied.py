"""What was done to a run: one change of it, in words, and as its user's files would have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from finitune.chapter import remedies
from finitune.finding import Remedy
from finitune.monitor.heal.undo import Undo
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.measurement import Reading
from finitune.reports.sentences import do, remedy_note

FOR_ITS_STEP = "for its step"
WATCHED_STEPS = 16
"""Steps that a remedy is watched for before it is kept. An incident that persists shows three times in a row, or ten
times in 20 steps; a remedy that lets one through in 16 has not held."""
PARTS: Sequence[str] = ("capture", "locate", "prove", "cure")
"""What the time of a healed incident goes to: writing the step down, its origin, its cause, and the remedy."""


@dataclass(slots=True, kw_only=True)
class Applied:
    """One change of the run. `left` steps are still watched; `state` is applied, kept, undone or for its step."""

    name: str
    cause: str
    action: str
    targets: frozenset[str]
    undo: Undo | None
    """None once it is kept or undone, and where nothing stays changed but its step."""
    watched: int
    """Number of the optimizer."""
    step: int
    incident: int
    remedy: Remedy
    """As the user's files would have it."""
    places: tuple[str, ...] = ()
    left: int = WATCHED_STEPS
    state: str = "applied"
    quiet: bool = False
    """Another rank speaks of it."""


def elsewhere(
    decision: Mapping[str, Any], action: str, undo: Undo | None, watched: Watched, reading: Reading
) -> Applied:  # fmt: skip
    """What another rank decided, recorded and printed, and this one has done too."""
    name = decision["name"]
    return Applied(
        name=name, cause="", action=action, targets=frozenset(decision["targets"]), undo=undo, watched=watched.number,
        step=reading.step, incident=0, remedy=Remedy(name=name, safety=remedies()[name].safety), quiet=True,
        state="applied" if undo is not None else FOR_ITS_STEP,
    )  # fmt: skip


def times(seconds: Mapping[str, float]) -> str:
    parts = ", ".join(f"{part} {seconds[part]:.2g}" for part in PARTS if part in seconds)
    return f"{sum(seconds.values()):.1f} s ({parts})"


def end(one: Applied) -> str:
    if one.state == FOR_ITS_STEP:
        return "which changed that step alone"
    return one.state if one.state != "applied" else f"still watched, {one.left} steps to go"


def for_the_files(left: list[Applied]) -> list[str]:
    """One line for each different change, as the user's files would have it."""
    places: dict[str, list[str]] = {}
    for one in left:
        places.setdefault(f"{do(one.remedy)}   ({remedy_note(one.remedy)})", []).extend(one.places)
    return [f"  do               {what}{': ' if where else ''}{'; '.join(where)}" for what, where in places.items()]
