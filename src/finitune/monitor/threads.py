"""Programs that train in several threads at the same time: what is kept once for all of them, until that is seen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class EachThread(Generic[T]):
    """One object for all threads of a program, and one for each of them once several train at the same time."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._one = make()
        self._of: dict[int, T] | None = None

    @property
    def apart(self) -> bool:
        return self._of is not None

    def separate(self, first: int) -> None:
        """From now on each thread has its own; the one that there is belongs to the thread of the identity `first`."""
        self._of = {first: self._one}

    def get(self) -> T:
        """That of the present thread."""
        if self._of is None:
            return self._one
        here = threading.get_ident()
        if here not in self._of:
            self._of[here] = self._make()
        return self._of[here]
