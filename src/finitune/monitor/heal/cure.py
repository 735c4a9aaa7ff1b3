"""What a live remedy is asked, and what it answers.

A file of `heal/remedies/` is found by its name, which is that of a chapter of `finitune.remedies`; there is no other
registration. It holds

    action = "healed"           what the recording calls a step that it was applied to
    cure(case) -> Cure          what it would do to this run; raises Unable where the run lacks an ability that it needs

    repeat(watched, orders)     where several ranks can do the same: does it, from orders alone, and returns its undo
    repeat_step(now, orders)    the same where nothing but the bad step is changed

A remedy without such a file, or that is unable, is advice. Nothing is changed by `cure`, and what `apply` changes its
undo puts back bit for bit.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch import nn

from finitune.chapter import causes
from finitune.monitor.capture.step import Capture
from finitune.monitor.clean_saves import CleanSave, CleanSaves
from finitune.monitor.experiments import outcome
from finitune.monitor.heal.undo import Undo
from finitune.monitor.investigation import Investigation
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.measurement import Reading, Unclipped
from finitune.monitor.replay.rerun import Setting
from finitune.series import Series

Change = Callable[[Setting], AbstractContextManager[None]]
"""What a replay of the captured step is run under."""


NOT_REPEATED = "hardware-fault-sdc"
"""The cause of what no experiment can bring back, race or chip."""
REPEATABLE = ("nonfinite-loss", "nonfinite-gradient")
"""Symptoms of which a finite run of the same step says that it does not repeat."""


def for_one_run(apply: Callable[[nn.Module], Undo]) -> Change:
    """What `apply` does to the model, for the time of one run of the step."""

    @contextmanager
    def changed(setting: Setting) -> Iterator[None]:
        undo = apply(setting.model)
        try:
            yield
        finally:
            undo()

    return changed


class Unable(Exception):
    """The remedy cannot be applied to this run by itself; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """The bad step as this rank knows it."""

    watched: Watched
    reading: Reading
    waits: bool
    """The update was discarded and the optimizer's own step is still to come."""
    clip: Unclipped | None
    """How the loop clipped the gradients of this step."""
    grad_norms: Series
    """Of the run so far, before clipping."""
    setting: Setting
    """How it is run again."""
    by_hand: bool
    """The loop's own code has changed the gradients between the backward and the step."""

    @staticmethod
    def of(watched: Watched, reading: Reading, waits: bool, clip: Unclipped | None, grad_norms: Series) -> Now:  # noqa: FBT001
        """Of a rank that may have no incident of its own."""
        assert watched.model is not None
        setting = Setting(
            model=watched.model, optimizer=watched.optimizer(), capture=Capture(micro_steps=list(watched.stepping_on)),
            scale=reading.scale, group=watched.group, past=watched.past,
        )  # fmt: skip
        return Now(
            watched=watched, reading=reading, waits=waits, clip=clip, grad_norms=grad_norms, setting=setting,
            by_hand=watched.gradients_written,
        )  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Case:
    """A bad step whose cause is proved, while its weights and its batch are still there."""

    cause: str
    inquiry: Investigation
    watched: Watched
    reading: Reading
    waits: bool
    """The update was discarded and the optimizer's own step is still to come."""
    clip: Unclipped | None
    """How the loop clipped the gradients of this step."""
    grad_norms: Series
    """Of the run so far, before clipping."""
    runs: int = 0
    """How often the captured step was run again for it."""

    @property
    def now(self) -> Now:
        return Now(
            watched=self.watched, reading=self.reading, waits=self.waits, clip=self.clip, grad_norms=self.grad_norms,
            setting=self.inquiry.setting(), by_hand=self.inquiry.by_hand,
        )  # fmt: skip

    def refuse_compiled(self) -> None:
        """Raises Unable."""
        if self.inquiry.compiled:
            raise Unable("something of the program is compiled, and compiled code may not see the change")

    def finite(self, change: Change) -> bool:
        """Whether the captured step is finite under `change`. Raises OverBudget."""
        self.inquiry.limits.check()
        self.runs += 1
        return outcome(self.inquiry, change) == "finite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """What one live remedy would do. `targets` name what it changes, so that the same is not tried twice."""

    text: str
    """What is done, as one clause."""
    price: str
    """What the run pays from now on; empty for nothing."""
    targets: frozenset[str]
    change: Change
    placebo: Change | None
    """None where it is the step as it ran."""
    instead: str
    """The placebo in words; empty where there is none."""
    apply: Callable[[], Undo | None]
    """Changes the run. Returns how to take it back; None where nothing stays changed but the step itself."""
    patch: Mapping[str, Any] | None = None
    """The same for the user's files, as the remedy chapter spells it, where that is more than the chapter knows."""
    orders: Mapping[str, Any] | None = None
    """What `repeat` or `repeat_step` of the same file needs to do the same on every rank, as JSON; None where several
    ranks cannot.
    """
    places: tuple[str, ...] = ()
    """Where in the user's data it belongs, where no setting says it."""


def established(inquiry: Investigation) -> str | None:
    """The cause that a remedy may be tried for: proved, or a step or an update that was seen not to repeat."""
    proved = inquiry.proved()
    once = inquiry.repeats is False or "changed_in_memory" in inquiry.event
    if proved is not None or not once or inquiry.event["symptom"] not in REPEATABLE:
        return proved
    try:
        leading = inquiry.incident().causes
    except ImportError:  # nothing beside torch is installed here
        return None
    return NOT_REPEATED if leading and leading[0].cause == NOT_REPEATED else None


def live(name: str) -> ModuleType | None:
    """The live form of the remedy chapter `name`, None where it has none."""
    module = f"finitune.monitor.heal.remedies.{name.replace('-', '_')}"
    return importlib.import_module(module) if importlib.util.find_spec(module) is not None else None


def to_resume(case: Case, saves: CleanSaves) -> CleanSave | None:
    """Where nothing was done: a checkpoint of before the damage, if weights are to be replaced by earlier ones."""
    names = causes()[case.cause].declared("remedies") if case.cause else ()
    back = any((module := live(name)) is not None and module.action == "rolled-back" for name in names)
    diverged = case.inquiry.event["symptom"] == "divergence"
    return saves.newest(case.inquiry.event["last_good"]) if back or diverged else None
