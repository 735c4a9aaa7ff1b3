"""Learning-rate schedules: one that advances with every step does not advance on a step that was discarded."""

from __future__ import annotations

import copy
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

    def remember(self, schedule: Any) -> tuple[Any, dict[str, Any], list[Any]]:
        """The schedule as it is, before a step whose verdict is not known yet."""
        rates = [copy.copy(group["lr"]) for group in schedule.optimizer.param_groups]
        return schedule, copy.deepcopy(schedule.state_dict()), rates

    def set_back(self, remembered: list[tuple[Any, dict[str, Any], list[Any]]]) -> None:
        """The step was discarded: these schedules have not advanced, the oldest state first."""
        for schedule, state, rates in reversed(remembered):
            schedule.load_state_dict(state)
            for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
                if hasattr(group["lr"], "copy_"):
                    group["lr"].copy_(rate)
                else:
                    group["lr"] = rate
