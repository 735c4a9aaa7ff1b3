"""What a piece of a program did to the device: kernels, crossings and bytes, each with the line that caused it."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch

KERNEL = "kernel"
BLOCKING = "blocking"
"""The host waits for the device: a read, a copy of pageable memory, a wait for an event that has not happened."""
ASYNC = "async"
"""A copy between the device and pinned memory that is queued."""
QUERY = "query"
"""The host asks how far the device is, and goes on."""
COLLECTIVE = "collective"

_TORCH = Path(torch.__file__).parent
_PASSING_ON = (
    str(Path(__file__).parent) + "/",
    *(str(_TORCH / name) for name in ("_ops.py", "nn/modules/module.py", "distributed/c10d_logger.py")),
)
"""They call what they are given, and from another line where there are hooks."""
_DEPTH = 3
LOOP = "loop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that the device was asked to do."""

    kind: str
    what: str
    nbytes: int
    owner: str
    """Innermost line of the recorded package, as `file:line` within it; "loop" where none of its frames is active."""
    place: tuple[str, ...]
    """Innermost lines outside of the recorded package, 3 at most; none in the thread of the device."""


class Trace:
    """The events since it was begun, and the bytes alive on the device: at its begin, at its end, at most.

    A wrapper of the package through which the loop's own call passes is its innermost frame too, so `owner` alone
    does not say who caused an event: `added` does, by comparison with the program run without the package.
    """

    def __init__(self, package: Path | None, live: int) -> None:
        self.events: list[Event] = []
        self.before = self.after = self.peak = live
        self._package = f"{package}/" if package else None

    def note(self, kind: str, what: str, nbytes: int) -> None:
        owner, place = self._lines(sys._getframe(1))
        self.events.append(Event(kind=kind, what=what, nbytes=nbytes, owner=owner, place=place))

    def count(self, kind: str, owner: str | None = None) -> int:
        """How many events of `kind`; with `owner` those of one line, or of "loop"."""
        return sum(event.kind == kind and owner in (None, event.owner) for event in self.events)

    def whats(self, kind: str) -> list[str]:
        """What the events of `kind` were, in order."""
        return [event.what for event in self.events if event.kind == kind]

    def _lines(self, frame: FrameType | None) -> tuple[str, tuple[str, ...]]:
        owner = LOOP
        place: list[str] = []
        while frame is not None and not (owner != LOOP and len(place) == _DEPTH):
            path = frame.f_code.co_filename
            if path.startswith(_PASSING_ON):
                pass
            elif self._package and path.startswith(self._package):
                owner = f"{path[len(self._package) :]}:{frame.f_lineno}" if owner == LOOP else owner
            elif len(place) < _DEPTH:
                place.append(f"{path}:{frame.f_lineno}")
            frame = frame.f_back
        return owner, tuple(place)


def added(watched: Trace, unwatched: Trace, kind: str) -> Counter[str]:
    """What the package added, by its line: events of `watched` without a counterpart in `unwatched`.

    The counterpart has the same operator at the same place in the program or in torch.
    """
    own = Counter((event.what, event.place) for event in unwatched.events if event.kind == kind)
    more: Counter[str] = Counter()
    for event in watched.events:
        if event.kind == kind:
            if own[event.what, event.place] > 0:
                own[event.what, event.place] -= 1
            else:
                more[event.owner] += 1
    return more
