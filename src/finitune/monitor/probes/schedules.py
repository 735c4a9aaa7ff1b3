"""Learning-rate schedules: one that advances with every step does not advance on a step that was discarded."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary


class Schedules:
    """Remembers at which step each schedule was last asked to advance."""

    def __init__(self) -> None:
        self._asked: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def may_step(self, schedule: Any, step: int, *, discarded: bool) -> bool:
        """`discarded`: the update of the last optimizer step, `step`, was. The first step of a schedule is taken by its
        constructor; one that advances once in many steps, as per epoch, always may.
        """
        last, self._asked[schedule] = self._asked.get(schedule, 0), step
        begins = getattr(schedule, "_is_initial", False) or getattr(schedule, "last_epoch", 0) < 0
        return begins or not discarded or step - last > 1
