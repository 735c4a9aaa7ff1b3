"""The gate: before every optimizer step one question is asked, and a bad update is discarded.

The verdict comes first and depends on nothing else. What follows from it, messages and the recording, may fail without
letting a bad update through. An optimizer that carries its own loss scaler, and a GradScaler, keep their right to skip;
then the gate only looks, and in mode `heal` a remedy may give the step other gradients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from finitune.monitor.capture.step import Capture, MicroStep
from finitune.monitor.incidents import Incidents
from finitune.monitor.live_step import LiveStep
from finitune.monitor.loop_writes import LoopWrites
from finitune.monitor.micro_steps import Pending, all_zero
from finitune.monitor.optimizers import BadEvaluation, Deferred, Optimizers, Watched, step_of
from finitune.monitor.probes.finite import are_finite
from finitune.monitor.probes.foreign import is_foreign
from finitune.monitor.probes.measurement import NOTHING_MEASURED, SPOILS, UNDONE, Measured, Reading, any_bad, confirmed
from finitune.monitor.probes.optimizers import BeforeStep
from finitune.monitor.probes.readback import Readback
from finitune.monitor.probes.resumed_steps import steps_before
from finitune.monitor.probes.schedules import Schedules
from finitune.monitor.run import Run
from finitune.monitor.samples import WEIGHTS, WEIGHTS_BEFORE
from finitune.monitor.spikes import Spikes
from finitune.monitor.spoilt_updates import keep, keep_ungated, taken_back
from finitune.monitor.step_measures import StepMeasures, is_of_device
from finitune.monitor.step_places import LastPlace, StepPlace
from finitune.monitor.step_row import record_step
from finitune.monitor.threads import EachThread

if TYPE_CHECKING:
    from finitune.monitor.heal.policy import Healing

TORN = "some ranks have taken the update before back and others have not, so that they hold different weights"
NO_GROUP = "no group of ranks is known, and a rank never skips a step alone"


class Gate:
    """The steps of one process. `step` is the last optimizer step that was begun, from 1."""

    def __init__(
        self, run: Run, optimizers: Optimizers, pendings: EachThread[Pending], incidents: Incidents, live: LiveStep,
        stop: Callable[..., None], broken: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self.step = 0
        self.shut = False
        """Every update is discarded: the run is about to end."""
        self.began = time.perf_counter()
        self.healing: Healing | None = None
        """In mode `heal`."""
        self.spikes: Spikes | None = None
        self.schedules = Schedules()
        self.measures = StepMeasures(run, broken)
        self.writes = LoopWrites(run.modules, optimizers)
        self.unmeasured = 0
        """Steps of which the verdict alone is known."""
        self._run = run
        self._optimizers = optimizers
        self._last = LastPlace()
        self._is_open = False
        """The last step was begun and has not ended, as one that has raised."""
        self._pendings = pendings
        self._incidents = incidents
        self._live = live
        self._stop = stop
        self._broken = broken

    @property
    def _pending(self) -> Pending:
        return self._pendings.get()

    # Before a step.

    def opens(self, watched: Watched, *, skippable: bool, runs: bool = False) -> bool:
        """A step is about to run. False where it must not be called; else it may, with its gradients taken away where
        it must change nothing. `runs`: whatever the verdict; it has run already, or is taken back.
        """
        if self.shut:
            self.discard(watched, skippable=skippable, runs=runs)
            return not skippable
        self._safely(self.settle, watched)
        watched.step_begins()
        on = self._pending.of(watched.number)
        pairs = watched.update.gradients()
        begun = on or self.step or self._pending.micro_steps
        if not pairs:
            self._safely(keep_ungated, watched)
            return True
        if not begun and all_zero([gradient for _, gradient in pairs]):
            return True  # a framework that has its optimizer make its state
        self._safely(self._number, watched, on)
        self._safely(self._look_for_writes, watched)
        self._is_open, watched.stepping_on = True, on
        watched.look_for_edits(scaled=any(micro.scale is not None for micro in on))
        self._optimizers.edit_gradients |= watched.edits_gradients
        capture = Capture(micro_steps=list(on), began=self._pending.began, waiting=tuple(self._pending.micro_steps))
        bad, measured, reading = self._verdict(watched, capture, pairs)
        leaves_it = watched.update.skips_overflows and reading is not None and reading.bad_gradients
        taken_back = runs or (not skippable and is_foreign(watched.optimizer()))
        leaves_it = leaves_it or (taken_back and watched.before is None)
        discard = bad and self._run.guards and not leaves_it and not watched.group.is_unknown
        if reading is not None and not bad and self.spikes is not None:
            discard = self.spikes.skips(watched, reading)
        if discard:
            self.discard(watched, skippable=skippable, runs=runs)
        watched.reading, watched.kept = reading, None
        undone = 0.0 if reading is None else reading.more.get(UNDONE, 0.0)
        if 0 < undone < 1:
            self._safely(self._incidents.undone.report_alone, watched, by_each=True)
            self._stop(TORN, watched)
        elif undone:
            self._safely(self._incidents.undone.report_together, watched)
        if not bad and self._run.guards and watched.group.sees_alike:
            self._safely(keep, watched)
        if reading is not None and measured is not None:
            reading.parameters = [p for p, _ in pairs]
            self._safely(self._consider, watched, reading, capture, acted=discard, summed=measured.extra)
            if reading.bad and self.healing is not None:
                self._safely(self.healing.treat, watched, reading, measured.unclipped)
            elif self.healing is not None:
                self._safely(self.healing.step_follows, watched, reading, capture, measured.unclipped)
            if bad and watched.group.is_unknown and self._run.guards:
                self._stop(NO_GROUP, watched)
        return not (watched.discarded and skippable)

    def _safely(self, method: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """What fails here changes no verdict, and no random number of the run."""
        try:
            method(*args, **kwargs)
        except Exception as error:
            self._broken(error)

    def discard(self, watched: Watched, *, skippable: bool, runs: bool = False) -> None:
        """Let the step that is about to run change nothing; what `runs` is taken back."""
        watched.discarded = True
        if runs:
            return
        skip = getattr(watched.update, "skip", None)
        if skippable:
            if skip is not None:
                skip()
        else:
            watched.update.withhold()

    def _verdict(
        self, watched: Watched, capture: Capture, pairs: list[tuple[Any, Tensor]]
    ) -> tuple[bool, Measured | None, Reading | None]:
        """Whether the update is bad. What cannot be measured is judged by the plainest means, and never let through."""
        gradients = [gradient for _, gradient in pairs]
        try:
            exact, asks = self._defers(watched), self._incidents.asks(watched)
            measured = self.measures.before(self.step, watched, capture, gradients, exact=exact, asks=asks)
            if exact:
                watched.update.discard_on_device(measured.flag)
                measured.gradients = ()  # the flag is exact, and nothing of the step's memory is kept for it
                watched.deferred = Deferred(
                    measured=measured, values=Readback(measured.values), capture=capture, seconds=self._seconds(),
                    parameters=[p for p, _ in pairs],
                )  # fmt: skip
                return False, None, None
            reading = confirmed(measured.read(), measured)
        except Exception as error:
            if is_of_device(error):
                raise
            self._broken(error)
            self.unmeasured += 1
            return any_bad(capture.roots, gradients), None, None
        return reading.bad, measured, reading

    def _defers(self, watched: Watched) -> bool:
        update, group = watched.update, watched.group
        alone = group.size == 1 and not self._live.running and self.spikes is None
        return self._run.mode == "guard" and alone and not watched.is_wrapped and update.takes_flag

    def _consider(
        self, watched: Watched, reading: Reading, capture: Capture, *, acted: bool, summed: Tensor | None = None
    ) -> None:
        """What to make of a verdict that has been acted on. `summed` is the sample of gradients over all ranks."""
        reading.skipped = acted
        live = None if self._incidents.waits_for_another(watched) and not reading.bad else self._live.taken()
        check = self.measures.reduction_of(watched)
        if check is not None and summed is not None:
            self._incidents.compare_reduction(watched, check, summed, reading, capture)
        if reading.more.get(WEIGHTS) == 0:
            self._incidents.bad_weights(watched, reading, self.writes.made())
        elif watched.written_by_loop and not reading.bad:
            own = {id(p) for p in watched.parameters()}
            self.writes.keep([p for p in watched.written_by_loop if id(p) not in own])
        if reading.bad_update:
            self._incidents.bad_update(watched, reading, capture)
        elif reading.bad:
            may_settle = watched.update.skips_overflows or watched.update.scaler_decides
            self._incidents.bad(watched, reading, capture, may_settle=may_settle, acted=acted, live=live)

    def evaluated_again(self, watched: Watched) -> None:
        """The closure of the step that runs was evaluated once more."""
        pairs = [] if watched.evaluation is not None else watched.update.gradients()
        gradients = [gradient for _, gradient in pairs]
        if any_bad((), gradients):
            capture = Capture(micro_steps=self._pending.of(watched.number)[-1:])
            reading = self.measures.read_alone(self.step, watched, capture, gradients, scaled=False)
            reading.parameters = [p for p, _ in pairs]
            weights = BeforeStep(watched.optimizer(), watched.parameters())
            watched.evaluation = BadEvaluation(reading=reading, capture=capture, weights=weights)

    # After it.

    def closes(self, watched: Watched, *, failed: bool) -> None:
        """A step has returned, or raised."""
        watched.update.restore_gradients()
        watched.left_gradients = []
        (before, reading), watched.before, watched.reading = (watched.before, watched.reading), None, None
        on, watched.stepping_on = watched.stepping_on, []
        evaluation, watched.evaluation = watched.evaluation, None
        if before is not None and watched.discarded:
            before.restore()
        (kept, ungated), watched.kept, watched.ungated = (watched.kept, watched.ungated), None, None
        self._is_open = failed
        if failed:
            return
        if evaluation is not None and before is not None and not watched.discarded and before.spoilt():
            reading, kept, watched.discarded = evaluation.reading, None, True
            evaluation.weights.restore()
            self._safely(self._consider, watched, reading, evaluation.capture, acted=True)
            before.restore()
        if ungated is not None:
            kept, versions = ungated
            if watched.versions() != versions:
                self._safely(self._stepped_without_gradients, watched, on, kept)
            return
        if kept is not None and reading is not None and not watched.discarded:
            self._safely(self.undo_spoilt, watched, reading, on, kept)
        # The gradients of the last evaluation are still there, and no further step uses them.
        last = watched.evaluations < 2 and watched.first_gradients is None
        on = on if last else self._pending.of(watched.number)
        self._pending.stepped(watched.number, on, first=watched.steps == 1)
        if reading is None:
            if watched.deferred is not None:
                self.measures.after(self.step, watched)
                self._live.step_follows(self.step + 1)
            return
        reading.skipped = watched.discarded or watched.update.skipped
        if not reading.skipped:
            self.measures.after(self.step, watched)
        if watched.written_by_loop:
            self.writes.keep_more(watched.parameters())
        self.finish(watched, reading, Capture(micro_steps=on))

    def _stepped_without_gradients(self, watched: Watched, on: list[MicroStep], kept: BeforeStep) -> None:
        """An optimizer of the program's own was given its update as an argument, and has written it."""
        self._number(watched, on)
        reading = replace(NOTHING_MEASURED, step=self.step)
        if self._run.guards:
            self.undo_spoilt(watched, reading, on, kept)
        elif spoilt := kept.spoilt():
            reading.spoilt, reading.more = spoilt, {SPOILS: 1.0}
            self._consider(watched, reading, Capture(micro_steps=on), acted=False)
        reading.skipped = watched.discarded
        self._pending.stepped(watched.number, on)
        self.finish(watched, reading, Capture(micro_steps=on))

    def undo_spoilt(self, watched: Watched, reading: Reading, on: list[MicroStep], kept: BeforeStep) -> None:
        """The update of finite gradients may have spoilt weights or their state, which are then what they were."""
        if taken_back(watched, reading, kept, self._run.modules):
            self._consider(watched, reading, Capture(micro_steps=on), acted=True)

    def finish(self, watched: Watched, reading: Reading, capture: Capture, seconds: float | None = None) -> None:
        """A step is over and its verdict known: record it, and see whether the run must end."""
        capture.forget_callers()
        reading = self.measures.judge_statistics(reading)
        watched.finite_weights |= 1.0 in (reading.more.get(WEIGHTS), reading.more.get(WEIGHTS_BEFORE))
        record_step(self._run, watched, reading, self._seconds() if seconds is None else seconds)
        if self.healing is not None:
            self._safely(self.healing.step_ended, watched, reading)
        why = self._incidents.over(watched, reading, capture, alone=not self._pendings.apart)
        why = NO_GROUP if reading.spoilt and watched.discarded and watched.group.is_unknown else why
        if why is not None:
            self._stop(why, watched)
        if self.healing is not None:
            self._safely(self.healing.treat_sighted, watched, reading)
        if reading.step == self._live.asked:
            seen = "" if reading.bad else ": every number of it is finite"
            self._stop(f"step {reading.step} was watched operator by operator{seen}", watched, asked=True)
        if self._incidents.wants_live_watch:
            self._incidents.live_watch_begins()
            self._live.begin()
        self._live.step_follows(self.step + 1)
        self._safely(self.measures.step_over, self.step)

    def settle(self, watched: Watched) -> None:
        """Read the verdict of the step before, where the device acted on it alone."""
        deferred, watched.deferred = watched.deferred, None
        if deferred is None:
            return
        reading = deferred.measured.read(deferred.values.read())
        reading.skipped = watched.discarded = reading.bad
        reading.parameters = deferred.parameters
        if reading.bad:
            self.schedules.set_back(deferred.schedules)
            self._consider(watched, reading, deferred.capture, acted=True)
        self.finish(watched, reading, deferred.capture, deferred.seconds)

    def has_discarded(self, watched: Watched) -> bool:
        self.settle(watched)
        return watched.discarded

    def scaler_skipped(self, watched: Watched) -> None:
        """GradScaler.step has returned without calling the optimizer."""
        on, pairs, clip = self._pending.of(watched.number), watched.update.gradients(), watched.unclipped
        if not on or not pairs:
            return
        self._number(watched, on)
        capture = Capture(micro_steps=on)
        reading = self.measures.read_alone(
            self.step, watched, capture, [gradient for _, gradient in pairs], scaled=False
        )
        reading.parameters = [p for p, _ in pairs]
        reading.skipped = reading.bad_gradients = True
        self._incidents.bad(watched, reading, capture, may_settle=True, acted=False, live=self._live.taken())
        if self.healing is not None:
            watched.stepping_on = on
            self._safely(self.healing.treat_skipped, watched, reading, clip)
        self._pending.stepped(watched.number, on)
        self.finish(watched, reading, capture)

    def dropped(self, watched: Watched) -> None:
        """Gradients are about to be set to zero without a step. Where they are bad, the loop itself skips the step."""
        gradients, users = watched.gradients(), self._pending.used_by_others(watched.number)
        for one in self._optimizers if users else ():
            one.is_measured_by_others |= one.number in users
        lost = self._pending.dropped(watched.number)
        if not lost or not gradients or watched.reading is not None:
            return
        capture = Capture(micro_steps=lost)
        reading = self.measures.read_alone(self.step, watched, capture, gradients, scaled=watched.unclipped is None)
        if not reading.bad:
            return  # a look ahead, as of SAM, or gradients that were copied elsewhere
        reading.step = self.step = step_of(watched, self.step, lost)
        watched.last = self.step
        reading.skipped = True
        live = self._live.taken()
        self._incidents.bad(watched, reading, capture, may_settle=True, acted=False, live=live, by_hand=True)
        self.finish(watched, reading, capture)

    def ends_step(self, places: Iterable[StepPlace]) -> bool:
        """True where the last step has not ended, or one of `places` is below it and no backward has come since."""
        begun = any(self._pending.of(one.number) for one in self._optimizers if one.last == self.step)
        return self._is_open or (not begun and any(place.is_below(self._last.place) for place in places))

    def loss_seen(self, roots: list[Tensor], micro: MicroStep) -> None:
        """A backward is about to run from `roots`."""
        live = self._live.now()
        if live is not None and micro.objective is not None:
            self._safely(self._incidents.loss_seen, live, micro, roots[0])

    def ended(self, watched: Watched) -> None:
        """The program has ended: what its last update, or a statement after it, did to weights shows in no step."""
        self._incidents.undone.report_alone(watched)
        unknown = watched.finite_weights and not watched.bad_in_a_row and watched.group.size == 1
        if unknown and not are_finite([p.detach() for p in watched.parameters()]):
            watched.written_by_loop = watched.parameters()
            self._incidents.bad_weights(watched, replace(NOTHING_MEASURED, step=self.step + 1))

    def _look_for_writes(self, watched: Watched) -> None:
        known = self._pendings.apart or watched.past is not None  # what other threads train is not to be read
        place = None if known else self._last.place
        watched.written_by_loop = self.writes.weights(watched, place)

    # What both use.

    def _number(self, watched: Watched, on: list[MicroStep]) -> None:
        if not self.step:
            earlier = steps_before(watched.optimizer(), self._run.recorder.earlier_skips)
            self.step = earlier
            watched.last = earlier
        place, new = StepPlace.now(), None
        if place is not None and self._optimizers.several:
            new = self._last.begins_next(place, first=watched.last == 0, is_new=watched.born >= self.step)
        self.step = step_of(watched, self.step, on, new=new)
        self._last.taken(place, watched.number)
        watched.last = self.step

    def _seconds(self) -> float:
        now = time.perf_counter()
        passed, self.began = now - self.began, now
        return passed
