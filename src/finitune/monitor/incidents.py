"""What to make of a bad step: a scaler that settles, a known incident, a new one; and when a run must end."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from finitune.chapter import Sighting
from finitune.finding import Origin, as_json
from finitune.monitor.capture.step import Call, Capture, MicroStep
from finitune.monitor.consequences import consequence, forecast, persistence
from finitune.monitor.dead_model import death
from finitune.monitor.earlier_batches import EarlierBatch, is_beyond_data
from finitune.monitor.experiments import STANDS_STILL, result, try_causes
from finitune.monitor.header import facts_of_another, header_written
from finitune.monitor.investigation import Investigation
from finitune.monitor.optimizers import Optimizers, Watched
from finitune.monitor.origin.live_watch import LiveWatch
from finitune.monitor.origin.locate import bad_parameter
from finitune.monitor.probes.finite import is_finite
from finitune.monitor.probes.measurement import Reading, of_modules
from finitune.monitor.probes.modules import device_of
from finitune.monitor.probes.optimizers import may_make_nan
from finitune.monitor.probes.ranks import local
from finitune.monitor.probes.surroundings import randomness_kept
from finitune.monitor.reduction import ReductionCheck
from finitune.monitor.replay.limits import SECONDS, Limits, one_budget
from finitune.monitor.replay.rerun import Outcome, Setting, own_gradients
from finitune.monitor.run import Run
from finitune.monitor.settling import has_collapsed, is_spent, settles
from finitune.monitor.sightings import OWN, Sightings
from finitune.monitor.speech import lines_of_crash
from finitune.monitor.spoilt_updates import UndoneUpdates, blame_update
from finitune.monitor.statements.weight_edits import Written
from finitune.monitor.step_row import read_early
from finitune.series import Series

MAX_INVESTIGATIONS, MAX_LIVE_WATCHES = 20, 3
LOCATED_LIVE = ("nonfinite-loss", "nonfinite-gradient", "loss-scale-collapse")


class Incidents:
    """The incidents of one process. What takes part in a collective is called by all ranks of a group alike."""

    def __init__(self, run: Run, optimizers: Optimizers) -> None:
        self._run = run
        self._facts: dict[str, Any] | None = None
        self._described_by: int | None = None  # the number of an optimizer; 0 stands for one
        self._earlier: dict[int, EarlierBatch] = {}
        self._sightings = Sightings(optimizers, run)
        self.undone = UndoneUpdates(self._record_and_tell)
        self.sighted: Investigation | None = None  # the newest incident of finite numbers
        self.open: Investigation | None = None
        self._open_for: int | None = None
        self._seen: set[str] = set()
        self.assisted: Callable[[Watched, int | None], AbstractContextManager[None]] = lambda *_: nullcontext()
        """In mode `heal`: the other ranks take steps again with the one that investigates."""
        self.asks: Callable[[Watched], bool | None] = lambda _: None
        self.waiting: Callable[[], list[Call]] = list
        self.asking: dict[int, Callable[[], None]] = {}  # `asks` is None where no other rank takes part
        self._count = self._looked = self._live_watches = self.bad_steps = self.suspicions = 0

    @randomness_kept()
    @one_budget()
    def bad(
        self, watched: Watched, reading: Reading, capture: Capture, *, may_settle: bool, acted: bool,
        live: LiveWatch | None = None, by_hand: bool = False,
    ) -> None:  # fmt: skip
        """A step is not finite. `may_settle`: the loop's own scaler skips it, normal until proved otherwise; `by_hand`:
        the loop skips it, with a scale nobody knows; `acted`: finitune has discarded the update; `live` has watched it.
        """
        watched.skips_by_hand = by_hand
        self.describe_run(watched, capture)
        self._looked = 0
        may_settle = may_settle and not reading.bad_loss and not self._is_open_for(watched)
        may_settle = may_settle and not is_spent(watched, reading, capture, self._run)
        if may_settle and not has_collapsed(self._run.signals, reading):
            settled, self._looked = settles(watched, reading, capture, Limits.of_the_investigation(), by_hand=by_hand)
            if settled:
                return
        watched.bad_in_a_row += 1
        if self.open is not None and self.open.event["step"] == reading.step:
            return  # another optimizer of the same step has reported it
        self.bad_steps += 1
        if reading.bad_loss and watched.past is None and watched.group.size == 1 and watched.has_spoilt():
            self.bad_weights(watched, reading)
        if self._is_open_for(watched):
            self._continue(watched, reading, acted=acted)
            self._seen_live(live, reading, capture)
        else:
            self._investigate(watched, reading, capture, may_settle=may_settle, acted=acted, live=live)

    @randomness_kept()
    def bad_update(self, watched: Watched, reading: Reading, capture: Capture) -> None:
        """Loss and gradients were finite, the weights that the optimizer makes of them are not."""
        self.describe_run(watched, capture)
        watched.bad_in_a_row += 1
        self.bad_steps += 1
        if self._is_open_for(watched):
            self._continue(watched, reading, acted=reading.skipped)
            return
        inquiry = self._inquiry(watched, reading, capture, "nonfinite-update", reading.what, acted=reading.skipped)
        blame_update(inquiry, watched, reading)
        self._opened(inquiry, watched)
        if reading.spoilt and watched.group.size > 1 and watched.group.known:
            self.undone.add(inquiry, watched, knows=reading.made_by is not None)
        else:
            self._record_and_tell(inquiry, watched, watched.group.first(reading.own_bad, device_of(watched.model)))

    @randomness_kept()
    def bad_weights(self, watched: Watched, reading: Reading, written: Written | None = None) -> None:
        """After the step before, trained weights were not finite although its loss and gradients were; they are lost.
        `written`: by statements of the program's own.
        """
        weights = {id(p): p for p in (*watched.parameters(), *watched.written_by_loop)}.values()
        bad = [(self._run.modules.name(p), local(p)) for p in weights if not is_finite(p)]
        origin = bad_parameter(bad)
        if origin is None or "weights" in self._seen or self._is_open_for(watched):
            return
        self._seen.add("weights")
        self.bad_steps += 1
        are = "tensor is" if len(bad) == 1 else "tensors are"
        since = " after the update" if watched.finite_weights else ""
        text = f"{len(bad)} trained {are} not finite{since}, although loss and gradients were"
        made = replace(reading, step=reading.step - (written is None or not written.in_next), skipped=False)
        inquiry = self._inquiry(watched, made, Capture(micro_steps=[]), "nonfinite-update", text, acted=False)
        inquiry.event["bad"] = [name for name, _ in bad[:100]]
        inquiry.origin = origin if written is None else replace(written.origin, tensor=origin.tensor, rows=origin.rows)
        lost = [p for p in weights if self._run.modules.name(p) == origin.tensor and watched.wrote_last(p)]
        if written is None and not watched.written_by_loop and any(may_make_nan(watched.optimizer(), p) for p in lost):
            inquiry.blame_optimizer(origin)
        if watched.group.size == 1:  # other ranks may not have seen it
            self._opened(inquiry, watched)
        inquiry.record()
        self._run.speech.say(*inquiry.lines())

    @randomness_kept()
    def compare_reduction(
        self, watched: Watched, check: ReductionCheck, summed: Tensor, reading: Reading, capture: Capture
    ) -> None:
        """Finite gradients may still be wrong: where ranks averaged others than they computed, say so."""
        model = watched.model
        again = lambda _: []  # noqa: E731
        if model is not None and capture.runnable is None:
            setting = Setting(model=model, capture=capture, scale=reading.scale, group=watched.group)
            again = partial(own_gradients, setting)
        seen = check.judge(summed, again)
        if seen is None or reading.bad:
            return
        reading.reduction_error = seen.worst
        if not seen.wrong or watched.mismatched:
            return
        watched.mismatched = True  # reported once: a race goes on for the whole run
        self.describe_run(watched, capture)
        inquiry = self._inquiry(watched, reading, capture, "wrong-reduction", seen.text, acted=False)
        inquiry.event |= {"bad": list(seen.names), "reduction": as_json(seen)}
        inquiry.passes = int(seen.repeats is not None)
        inquiry.repeats, inquiry.why_not = False, "every number is finite"
        inquiry.record()
        self._run.speech.say(*inquiry.lines())

    def crashed(self, step: int, *, text: str, seen: Origin | None, was_live: bool, **fields: Any) -> None:
        """The program ended in an exception; `seen` is a weight that is not finite, or what a live watch has found."""
        self._count += 1
        event = {"id": self._run.recorder.earlier_incidents + self._count, "level": "incident", "symptom": "crash"}
        self._run.recorder.event(
            "incident", step=step, **event, text=f"the program ended in {text}", action="none", settles=False,
            after=self.open and self.open.event["id"], **fields,
        )  # fmt: skip
        if seen is not None:
            live = {"live": step} if was_live else {}
            self._run.recorder.event("origin", step=step, incident=event["id"], origin=seen, **live)
        self._run.speech.say(*lines_of_crash(step, text, fields.get("frames") or (), fields.get("batch") or (), seen))

    def over(self, watched: Watched, reading: Reading, capture: Capture, *, alone: bool) -> str | None:
        """A step of this optimizer has ended. Returns why the run must end, None while it may go on. Signals are judged
        where this thread trains `alone`: those of several come in any order.
        """
        self.describe_run(watched, capture)
        watched.recent.append(reading.bad and self._is_open_for(watched))
        if not reading.bad:
            if self._is_open_for(watched):
                self.open, self._open_for = None, None
            watched.settling_from, watched.bad_in_a_row = None, 0
            if alone:
                self._look_at_signals(watched, reading, capture)
            return None
        ends = self._run.guards and self._is_open_for(watched) and not watched.skips_by_hand
        return persistence(watched) if ends and self.open is not None and not self.open.event["settles"] else None

    @property
    def wants_live_watch(self) -> bool:
        """The origin of the present incident is not known, and the next step may show it."""
        open_ = self.open
        if open_ is None or open_.event["symptom"] not in LOCATED_LIVE or self._live_watches >= MAX_LIVE_WATCHES:
            return False
        return open_.term is not None or not (open_.is_located or open_.watched_live)

    def live_watch_begins(self) -> None:
        self._live_watches += 1
        if self.open is not None:
            self.open.watched_live = True

    def waits_for_another(self, watched: Watched) -> bool:
        """The present incident is that of another optimizer, whose next step a live watch is to see."""
        return self.open is not None and not self._is_open_for(watched)

    def _seen_live(self, live: LiveWatch | None, reading: Reading, capture: Capture) -> None:
        """The step after a bad one was watched operator by operator."""
        inquiry = self.open
        if live is None or inquiry is None or (inquiry.is_located and not inquiry.is_made_in(live)):
            return
        if inquiry.locate_live(live, capture, reading.step):
            inquiry.record_origin()
            self._prove_and_tell(inquiry, again=True)

    def loss_seen(self, live: LiveWatch, micro: MicroStep, root: Tensor) -> None:
        """A step that is watched live is about to run its backward from `root`."""
        inquiry = self.open if self.open and self.open.following else None  # else another rank has reported it
        if inquiry is not None and inquiry.find_line(live, micro, root) and inquiry.origin is not None:
            inquiry.record_origin()
            does = "goes into the loss" if inquiry.origin.phase == "input" else "was made"
            self._run.speech.say(f"step {inquiry.event['step']}: the first bad value {does} in {inquiry.origin.line}")

    def _is_open_for(self, watched: Watched) -> bool:
        return self.open is not None and self._open_for == watched.number

    def _opened(self, inquiry: Investigation, watched: Watched) -> None:
        self.open, self._open_for = inquiry, watched.number

    def _continue(self, watched: Watched, reading: Reading, *, acted: bool) -> None:
        assert self.open is not None
        own = self.open.event
        last_good = own["last_good" if own["action"] != "none" else "step"]
        text = f"{reading.what}. {consequence(self._run, watched, reading, last_good=last_good, acted=acted)}"
        text += forecast(self._run.signals, reading)
        self._run.recorder.event("action", step=reading.step, incident=own["id"], action=own["action"], text=text)
        self._run.speech.rarer(f"incident {own['id']}", f"step {reading.step}: {text}")

    def _investigate(
        self, watched: Watched, reading: Reading, capture: Capture, *, may_settle: bool, acted: bool,
        live: LiveWatch | None,
    ) -> None:  # fmt: skip
        symptom = "nonfinite-loss" if reading.bad_loss else "nonfinite-gradient"
        symptom = symptom if watched.settling_from is None else "loss-scale-collapse"
        inquiry = self._inquiry(watched, reading, capture, symptom, reading.what, acted=acted)
        inquiry.passes = self._looked
        self._opened(inquiry, watched)
        read_early(self._run.signals, reading)
        group, device = watched.group, device_of(watched.model)
        if self._count > MAX_INVESTIGATIONS:
            inquiry.why_not = f"more than {MAX_INVESTIGATIONS} incidents in this run"
            inquiry.record()
            self._run.speech.say(*inquiry.lines())
            return
        inquiry.find_origin(Outcome(losses=reading.losses, norms=reading.norms))
        if live is not None:
            inquiry.locate_live(live, capture, reading.step)
        speaker = group.first_of(*inquiry.knows, *reading.at_fault, device=device)
        repeats = group.agree(bool(inquiry.repeats), device=device)[0]
        # A scaler that will find a scale low enough is the loop's own business, however long it takes.
        unscaled_bad = may_settle and repeats and result(inquiry, "loss-scale-1") != "finite"
        inquiry.event["settles"] = may_settle and repeats and not group.agree(unscaled_bad, device=device)[0]
        if speaker is not None and speaker != group.rank:
            text = f"step {reading.step}: {reading.what}; rank {speaker} investigates, for at most {SECONDS:g} s"
            self._run.speech.once(f"waits {reading.step}", text)
        self._record_and_tell(inquiry, watched, speaker)

    def _record_and_tell(self, inquiry: Investigation, watched: Watched, speaker: int | None) -> None:
        """Of several ranks the speaker says what it was."""
        if speaker not in (None, watched.group.rank):
            with self.assisted(watched, speaker):
                return
        inquiry.record()
        self._prove_and_tell(inquiry, beside=self.assisted(watched, speaker))

    @randomness_kept()
    def _diverged(self, watched: Watched, reading: Reading, capture: Capture, seen: Sighting, loss: Series) -> None:
        """An earlier batch decides between divergence and other data."""
        earlier, model = self._earlier[watched.number], None if watched.group.split else watched.model
        if not is_beyond_data(loss) and earlier.is_of_another_loss(capture):
            return
        damaged = earlier.is_damaged(model, earlier.lost(loss, seen))
        if damaged and earlier.speaks_of(loss, seen):
            news = earlier.is_news(seen.numbers["loss"], seen.numbers["before"])
            if news and not (self.sighted and self.sighted.event["step"] == seen.step):  # by another optimizer
                self._sight(watched, reading, capture, seen, last_good=earlier.step, unproved=earlier.ask_again)
        elif damaged is not False or seen.level == "note" or is_beyond_data(loss):
            self._suspect(watched, reading, capture, seen)

    def _look_at_signals(self, watched: Watched, reading: Reading, capture: Capture) -> None:
        """Finite, but is something else wrong? Suspicions are said once, and change nothing."""
        earlier = self._earlier.setdefault(watched.number, EarlierBatch())
        own = {**self._run.signals, "loss": self._run.signals_of(watched.name, reading.step)["loss"]}
        signals = earlier.judged(own, watched.model if not watched.group.split else None, capture)
        found = self._sightings.at(reading.step, signals, watched)
        diverges = next((seen for seen in found if seen.symptom == "divergence"), None)
        if diverges is None:
            earlier.keep(reading.step, capture, reading.losses, signals["loss"])
        elif not earlier.asked_at(reading.step, diverges):
            self._diverged(watched, reading, capture, diverges, own["loss"])
        for seen in found:
            died = death(watched, capture, seen, signals) if seen.symptom == "zero-gradient" else None
            if died is not None:
                self._sight(watched, reading, capture, died, last_good=int(died.numbers["alive"]))
            elif seen.symptom not in OWN:
                self._suspect(watched, reading, capture, seen)

    def _sight(
        self, watched: Watched, reading: Reading, capture: Capture, seen: Sighting, *, last_good: int,
        unproved: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        @randomness_kept()  # at once, or at the next step where other ranks take part
        def look() -> None:
            self._record_sighting(watched, reading, capture, seen, level="incident", last_good=last_good)
            if (self.sighted and self.sighted.proved()) is None:
                unproved()

        if self.asks(watched) is None:
            look()
        else:
            self.asking[watched.number] = look

    @randomness_kept()
    def _suspect(self, watched: Watched, reading: Reading, capture: Capture, seen: Sighting) -> None:
        key = f"{seen.symptom} {seen.level}"
        if key in self._seen:
            return
        self._seen.add(key)
        if seen.level == "note":
            self._run.recorder.event("note", step=seen.step, symptom=seen.symptom, text=seen.text)
            return
        self._record_sighting(watched, reading, capture, seen, level=seen.level, last_good=reading.step)

    def _record_sighting(
        self, watched: Watched, reading: Reading, capture: Capture, seen: Sighting, *, level: str, last_good: int
    ) -> None:
        inquiry = self._inquiry(watched, reading, capture, seen.symptom, seen.text, acted=False)
        inquiry.event |= {"level": level, "last_good": last_good, "confirm": seen.confirm}
        inquiry.why_not = "every number of this step is finite"
        inquiry.record()
        self.suspicions += level == "suspicion"
        certain = level == "incident"
        examined = certain or (self._run.mode == "heal" and seen.symptom in STANDS_STILL)
        if examined and self._prove_and_tell(inquiry, certain=certain):
            self.sighted = inquiry
            return
        more = f"; {seen.confirm}" if seen.confirm else ""
        self._run.speech.say(f"step {reading.step}: suspicion: {seen.text} ({seen.symptom}{more})")

    def _inquiry(
        self, watched: Watched, reading: Reading, capture: Capture, symptom: str, text: str, *, acted: bool
    ) -> Investigation:
        self._count, names = self._count + 1, self._run.modules
        parameters = reading.parameters or [p for p, _ in watched.update.gradients()]
        named = [(names.name(p), norm) for p, norm in zip(parameters, reading.norms.tolist(), strict=False)]
        return Investigation(
            recorder=self._run.recorder, modules=self._run.modules, run_facts=self._facts or {},
            signals=self._run.signals_of(watched.name, reading.step), model=watched.model, past=watched.past,
            optimizer=watched.optimizer(), group=watched.group, written_by=watched.wrote_last, scale=reading.scale,
            by_hand=watched.edits_gradients, left=watched.left_gradients, capture=capture, waiting=self.waiting,
            event={
                "step": reading.step, "id": self._run.recorder.earlier_incidents + self._count,
                "level": "incident", "symptom": symptom, "text": text,
                "bad": [name for name, norm in named if not math.isfinite(norm)][:100],
                "gradients": of_modules(named, reading.scale),
                "tensors": len(reading.norms), "loss": reading.loss, "grad_norm": reading.grad_norm,
                "loss_scale": reading.scale, "optimizer": watched.name, "clipped_by_value": reading.clipped_by_value,
                "beside": symptom in LOCATED_LIVE and self._run.signals["skipped"].last_step == reading.step,
                "action": "skipped-step" if acted or reading.skipped else "none",
                "settles": False, "last_good": reading.step - 1, "scaler_spent": reading.scaler_spent,
                "weights_moved": watched.has_moved and not reading.bad_update,
                "facts": facts_of_another(watched, capture) if self._described_by not in (None, watched.number) else {},
            },
        )  # fmt: skip

    def _prove_and_tell(
        self, inquiry: Investigation, *, again: bool = False, certain: bool = True,
        beside: AbstractContextManager[None] | None = None,
    ) -> bool:  # fmt: skip
        """Whether it was said: of what is not `certain` only where a cause was proved."""
        try:
            with beside or nullcontext():
                try_causes(inquiry)
        finally:  # an experiment of ours that fails takes nothing of what is known
            if said := certain or inquiry.proved() is not None:
                self._run.speech.say(*inquiry.lines(again=again))
        return said

    def describe_run(self, watched: Watched, capture: Capture) -> None:
        """Once the first step has shown the dtype of its forward, or the program has died before."""
        if not self._described_by and watched.number != self._described_by:
            self._facts = header_written(self._run, watched, capture)
            self._described_by = watched.number
