"""What takes a change of the run back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Undo = Callable[[], None]


def of_all(changes: Iterable[Undo]) -> Undo:
    """Takes back all of these changes, the last one first."""
    made = list(changes)

    def undo() -> None:
        for one in reversed(made):
            one()

    return undo
