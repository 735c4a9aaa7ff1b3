"""Adam gets an eps that the float16 of its state can hold, and the step is taken with it.

Needs: torch's Adam or AdamW with an eps that float16 rounds to zero. Price: coordinates with tiny gradients move less.
Undo: every group gets its own eps back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from finitune.causes.adam_eps_underflow_fp16 import ROUNDS_TO_ZERO
from finitune.monitor.heal.cure import Case, Change, Cure, Unable, Undo
from finitune.monitor.probes import adam_update
from finitune.monitor.replay.rerun import Setting
from finitune.remedies.raise_adam_eps import HELD_BY_FLOAT16

action = "healed"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    optimizer: Any = case.watched.optimizer()
    if type(optimizer) not in adam_update.KINDS:
        raise Unable(f"{type(optimizer).__name__} is not torch's Adam")
    low = [group for group in optimizer.param_groups if group["eps"] <= ROUNDS_TO_ZERO]
    if not low:
        raise Unable("float16 can hold the eps that it has")

    def apply() -> Undo:
        undo = _with_eps(low, HELD_BY_FLOAT16)
        try:
            if case.waits:
                _take_step(case, optimizer)
        except BaseException:
            case.watched.update.withhold()  # the step stays discarded
            undo()
            raise
        return undo

    return Cure(
        text=f"eps of {type(optimizer).__name__} is {HELD_BY_FLOAT16:g} from now on (was {low[0]['eps']:g})",
        price=f"gradients below {HELD_BY_FLOAT16:g} move weights less",
        targets=frozenset({"eps"}),
        change=_update_with(low, HELD_BY_FLOAT16),
        placebo=_update_with(low, ROUNDS_TO_ZERO / 2),
        instead=f"an eps of {ROUNDS_TO_ZERO / 2:.2g} instead",
        apply=apply,
    )


def _with_eps(groups: list[dict[str, Any]], eps: float) -> Undo:
    own = [group["eps"] for group in groups]
    for group in groups:
        group["eps"] = eps

    def undo() -> None:
        for group, before in zip(groups, own, strict=True):
            group["eps"] = before

    return undo


def _update_with(groups: list[dict[str, Any]], eps: float) -> Change:
    """A trial update, after which the loss of the same batch is looked at."""

    @contextmanager
    def changed(setting: Setting) -> Iterator[None]:
        setting.update_times = 1.0
        undo = _with_eps(groups, eps)
        try:
            yield
        finally:
            undo()

    return changed


def _take_step(case: Case, optimizer: Any) -> None:
    """Its gradients were finite all along. Where the update would spoil a weight even so, it stays discarded."""
    update = case.watched.update
    update.restore_gradients()
    spoils = adam_update.spoils(optimizer)
    if spoils is None or bool(spoils):
        update.withhold()
    else:
        case.watched.discarded, case.watched.given = False, True
