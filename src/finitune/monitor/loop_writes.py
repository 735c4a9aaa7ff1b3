"""Weights that the program writes by statements of its own: those that no optimizer holds, and what it does to others
after their optimizer's step.

Where its source shows such statements these weights are looked at with the next step, and small ones are copied before
the statements run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import CodeType

from torch import Tensor

from finitune.monitor.optimizers import Optimizers, Watched
from finitune.monitor.probes.finite import is_finite
from finitune.monitor.probes.modules import Modules
from finitune.monitor.probes.optimizer_state import are_small
from finitune.monitor.statements.bad_statement import bad_statement
from finitune.monitor.statements.weight_edits import Left, Written, bad_write, may_write
from finitune.monitor.step_places import StepPlace

MOST_KEPT = 2**22
"""Bytes of weights that are copied in each step."""


class LoopWrites:
    def __init__(self, modules: Modules, optimizers: Optimizers) -> None:
        self._modules = modules
        self._optimizers = optimizers
        self._may: dict[tuple[CodeType, int], bool] = {}
        self._left: dict[int, Left] = {}

    def weights(self, watched: Watched, place: StepPlace | None) -> list[Tensor]:
        """Those that the loop may write after a step that is taken at that place; none where nothing shows it."""
        if place is None or watched.group.size > 1:
            return []
        key = place.code, place.line
        if key not in self._may:
            self._may[key] = may_write()
        return [*watched.parameters(), *self._without_optimizer()] if self._may[key] else []

    def _without_optimizer(self) -> list[Tensor]:
        """Parameters with a gradient that no optimizer holds."""
        held = {id(p) for one in self._optimizers for p in one.parameters()}
        found = (p for root in self._modules.roots() for p in root.parameters())
        return list({id(p): p for p in found if p.grad is not None and id(p) not in held}.values())

    def keep(self, weights: Sequence[Tensor]) -> None:
        """They are finite, and the loop's own statements follow. So are those that another optimizer has just left."""
        self._left = {number: one for number, one in self._left.items() if one.is_current}
        self.keep_more(weights)

    def keep_more(self, weights: Sequence[Tensor]) -> None:
        if are_small(weights, MOST_KEPT):
            self._left |= {id(p): Left.of(p) for p in weights}

    def made(self, now: Sequence[Tensor] = ()) -> Written | None:
        """What has made weights bad that were kept; `now` are those that have taken their places. Where their statement
        cannot be computed again, what that took may still be there, and bad.
        """
        left = list(self._left.values())
        now = now or [one.weight for one in left]
        with suppress(Exception):  # a variable that cannot be looked at
            if left and (written := bad_write(left, now)) is not None:
                return written
        with suppress(Exception):
            bad = [weight for weight in now if not is_finite(weight)]
            made = bad_statement(given=bad) if bad else None
            if made is not None and made.is_operator:
                return Written(origin=replace(made, phase="optimizer"), in_next=False)
        return None
