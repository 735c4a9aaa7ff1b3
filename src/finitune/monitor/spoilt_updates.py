"""Updates of finite gradients that spoil weights, by arithmetic that is not known: kept before, undone after, reported.

Where ranks hold the same weights each sees for itself what an update has made of them, and takes it back without asking
the others. They say so at their next step, in the collective that measures it, and report it there together.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from finitune.monitor.investigation import Investigation
from finitune.monitor.optimizers import Watched
from finitune.monitor.origin.watched_update import bad_operator
from finitune.monitor.probes.measurement import SPOILS, Reading
from finitune.monitor.probes.modules import Modules, device_of
from finitune.monitor.probes.names import dtype_name
from finitune.monitor.probes.optimizers import BeforeStep, TorchUpdate, kept_before, learning_rate
from finitune.monitor.statements.computed_rates import bad_rate


def keep(watched: Watched) -> None:
    """Copies before a step that may have to be taken back; None where nothing speaks for them. Of the gradients too,
    where an earlier step has written to these.
    """
    watched.kept = kept_before(watched.optimizer(), watched.each_parameter())
    if watched.kept is not None:
        watched.kept.look_at_gradients(copied=watched.steps_write_gradients)


def keep_ungated(watched: Watched) -> None:
    """The same before a call for which no parameter has a gradient."""
    alone = type(watched.update) is TorchUpdate and watched.group.size == 1
    kept = kept_before(watched.optimizer(), watched.each_parameter()) if alone else None
    watched.ungated = (kept, watched.versions()) if kept is not None else None


def taken_back(watched: Watched, reading: Reading, kept: BeforeStep, modules: Modules) -> bool:
    """Whether the update has spoilt weights, which are then what they were, as is the state of the optimizer."""
    watched.steps_write_gradients |= kept.has_written_gradients
    reading.spoilt = kept.spoilt()
    if not reading.spoilt:
        return False
    kept.restore()
    watched.discarded, watched.undone, reading.more = True, True, {**reading.more, SPOILS: 1.0}
    reading.made_by = bad_operator(watched, kept, modules.name(reading.spoilt[0]))
    return True


def blame_update(inquiry: Investigation, watched: Watched, reading: Reading) -> None:
    """The origin is the update of this step: an operator of it, the learning rate, or what is known of neither."""
    bad = reading.spoilt or [p for p in reading.parameters if p.dtype == torch.float16] or reading.parameters
    inquiry.event["bad"] = [inquiry.modules.name(p) for p in bad[:100]]
    if (rate := reading.more.get("lr", learning_rate(watched.optimizer()))) is not None:
        inquiry.signals["lr"].add(reading.step, float(rate))
    inquiry.blame_update_of(inquiry.event["bad"][0], dtype_name(bad[0].dtype), reading.made_by or bad_rate(rate))


class UndoneUpdates:
    """Those that ranks of a group have taken back each for itself, until they are reported by one of them.

    `report` is called with the investigation, its optimizer and the rank that speaks, None for this one.
    """

    def __init__(self, report: Callable[[Investigation, Watched, int | None], None]) -> None:
        self._report = report
        self._waiting: dict[int, tuple[Investigation, bool]] = {}

    def add(self, inquiry: Investigation, watched: Watched, *, knows: bool) -> None:
        """`knows`: this rank has seen the operator."""
        self._waiting[watched.number] = inquiry, knows

    def report_together(self, watched: Watched) -> None:
        """All ranks have come to their next step: the first that knows the operator speaks, else the first."""
        inquiry, knows = self._waiting.pop(watched.number, (None, False))
        speaker = watched.group.first_of(knows, inquiry is not None, device=device_of(watched.model))
        if inquiry is not None:
            self._report(inquiry, watched, speaker)

    def report_alone(self, watched: Watched, *, by_each: bool = False) -> None:
        """The program has ended, and the ranks meet no more: who knows the operator speaks, and the first rank; or who
        has seen anything, `by_each`, where others have not.
        """
        inquiry, knows = self._waiting.pop(watched.number, (None, False))
        if inquiry is not None and (by_each or knows or watched.group.rank == 0):
            self._report(inquiry, watched, None)
