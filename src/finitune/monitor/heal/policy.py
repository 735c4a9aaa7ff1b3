"""Healing: a remedy for a proved cause is tried on the captured step, applied, watched, and kept or undone.

Nothing here is done on a symptom alone, and the verdict of the gate never waits for it. What no remedy can prove is
left as in mode `guard`. Where several ranks train, remedies are advice: none of them may change its model alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from finitune.chapter import causes, remedies
from finitune.finding import Remedy
from finitune.monitor.heal.cure import Case, Cure, Unable, Undo, live
from finitune.monitor.heal.past import Past
from finitune.monitor.incidents import Incidents
from finitune.monitor.investigation import Investigation
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.measurement import Reading, Unclipped
from finitune.monitor.replay.capture import Capture
from finitune.monitor.replay.limits import Limits, OverBudget
from finitune.monitor.run import Run
from finitune.reports.sentences import counted, do, ranges, remedy_note

WATCHED_STEPS = 16
"""Steps that a remedy is watched for before it is kept. An incident that persists shows three times in a row, or ten
times in 20 steps; a remedy that lets one through in 16 has not held."""
MOST_PER_INCIDENT = 3
"""Remedies that are tried on one captured step."""
MOST_PER_RUN = 16
"""Times that a run is changed; one that needs more is not healed by it."""


@dataclass(slots=True, kw_only=True)
class Applied:
    """One change of the run. `left` steps are still watched; `state` is applied, kept or undone."""

    name: str
    cause: str
    action: str
    cure: Cure
    undo: Undo | None
    watched: int
    """Number of the optimizer."""
    step: int
    incident: int
    remedy: Remedy
    left: int = WATCHED_STEPS
    state: str = "applied"


class Healing:
    """What was done to one process, and is still watched."""

    def __init__(self, run: Run, incidents: Incidents) -> None:
        self._run = run
        self._incidents = incidents
        self._looked_at: dict[int, str | None] = {}
        self._runs, self._seconds = 0, 0.0
        self.applied: list[Applied] = []

    def treat(self, watched: Watched, reading: Reading, *, waits: bool = False, clip: Unclipped | None = None) -> None:
        """A step was bad, and its verdict acted on. `waits`: its update was discarded before the optimizer's own step;
        where a remedy gives that step finite gradients, `watched.discarded` is False afterwards.
        """
        inquiry = self._incidents.open
        if inquiry is not None and inquiry.optimizer is watched.optimizer():
            self._treat(inquiry, watched, reading, waits=waits, clip=clip)

    def treat_sighted(self, watched: Watched, reading: Reading) -> None:
        """A step is over, and an incident may have been seen in it although every number is finite: a divergence."""
        inquiry, self._incidents.sighted = self._incidents.sighted, None
        if inquiry is not None and inquiry.optimizer is watched.optimizer():
            self._treat(inquiry, watched, reading)

    def _treat(
        self, inquiry: Investigation, watched: Watched, reading: Reading, *, waits: bool = False,
        clip: Unclipped | None = None,
    ) -> None:  # fmt: skip
        cause, number = inquiry.proved(), inquiry.event["id"]
        if number in self._looked_at and self._looked_at[number] == cause:
            return
        if cause is None and watched.group.size > 1:
            return  # the rank that investigated says what it found
        self._looked_at[number] = cause
        began = time.perf_counter()
        inquiry.limits = Limits()
        case = None
        try:
            why = self._why_not(watched, inquiry, cause)
            if why is None and cause is not None:
                case = Case(
                    cause=cause, inquiry=inquiry, watched=watched, reading=reading, clip=clip,
                    waits=waits and inquiry.event["step"] == reading.step, grad_norms=self._run.signals["grad_norm"],
                )  # fmt: skip
                why = self._healed(case, began)
        finally:
            self._runs += case.runs if case is not None else 0
            self._seconds += time.perf_counter() - began
        if why is None:
            if reading.bad:
                self._incidents.healed(watched)
            return
        watch = self._in_watch(watched) if reading.bad else []
        self._undo(watch, watched, reading.step, "a step is bad, and nothing proves another cause")
        self._run.recorder.event("remedy", step=reading.step, incident=number, state="advice", cause=cause, text=why)
        self._run.speech.say(f"step {reading.step}: not healed: {why}")

    def _why_not(self, watched: Watched, inquiry: Investigation, cause: str | None) -> str | None:
        if cause is None:
            return "no cause is proved, and nothing is changed on a symptom alone"
        if watched.group.size > 1 or self._run.world > 1:
            return f"remedies are advice where {max(watched.group.size, self._run.world)} ranks train together"
        if inquiry.model is None or inquiry.capture.runnable is not None:
            return "the step cannot be run again, so no remedy can be tried on it"
        if len(self.applied) >= MOST_PER_RUN:
            return f"the run was changed {MOST_PER_RUN} times already"
        return None

    def _healed(self, case: Case, began: float) -> str | None:
        """The first remedy of the cause that is proved on the captured step is applied; else why none was."""
        left_out: list[str] = []
        tried = 0
        for name in causes()[case.cause].declared("remedies"):
            module = live(name)
            if module is None:
                left_out.append(f"{name} is advice")
                continue
            if tried >= MOST_PER_INCIDENT:
                break
            tried += 1
            try:
                cure: Cure = module.cure(case)
                self._did_not_hold(name, cure, case)
                self._prove(case, cure)
                undo = cure.apply()
            except (Unable, OverBudget) as why:
                left_out.append(f"{name}: {why}")
                continue
            self._apply(case, name, module.action, cure, undo, time.perf_counter() - began)
            return None
        return f"{case.cause}: {'; '.join(left_out) or 'the book has no remedy'}"

    def _did_not_hold(self, name: str, cure: Cure, case: Case) -> None:
        """Raises Unable, and takes the remedy back, where the same was done before and the step is bad all the same."""
        same = [one for one in self.applied if one.name == name and cure.targets <= one.cure.targets]
        if not same:
            return
        watch = [one for one in same if one.state == "applied"]
        self._undo(watch, case.watched, case.reading.step, "the same cause is proved again")
        if any(one.state == "kept" for one in same):
            raise Unable("it is in place, and the step is bad all the same")
        raise Unable("it did not hold")

    def _prove(self, case: Case, cure: Cure) -> None:
        if not case.finite(cure.change):
            raise Unable("the captured step is not finite with it")
        if case.finite(cure.placebo):
            raise Unable(f"the captured step is finite with {cure.instead} as well")

    def _apply(self, case: Case, name: str, action: str, cure: Cure, undo: Undo | None, seconds: float) -> None:
        step, number = case.reading.step, case.inquiry.event["id"]
        chapter = remedies()[name]
        proposed = next((one.remedies for one in case.inquiry.incident().causes if one.cause == case.cause), ())
        remedy = next((one for one in proposed if one.name == name), Remedy(name=name, safety=chapter.safety))
        one = Applied(
            name=name, cause=case.cause, action=action, cure=cure, undo=undo, watched=case.watched.number, step=step,
            incident=number, remedy=remedy if cure.patch is None else replace(remedy, patch=cure.patch),
        )  # fmt: skip
        if undo is None:
            one.state = "kept"
        self.applied.append(one)
        if case.watched.past is not None:
            case.watched.past.steps.clear()  # what was taken before the change is not taken again
        price = f"; price: {cure.price}" if cure.price else ""
        watch = f"; watched for {WATCHED_STEPS} steps" if undo is not None else ""
        text = f"{name}: {cure.text}"
        self._record(one, step, text, seconds=seconds, runs=case.runs, price=cure.price)
        self._run.speech.say(
            f"step {step}: healed ({case.cause}, proved): {text}. "
            f"Finite with it, not with {cure.instead}{price}; {seconds:.1f} s{watch}"
        )

    def step_follows(self, watched: Watched, step: int, capture: Capture, clip: Unclipped | None) -> None:
        """A step with finite gradients is about to be taken."""
        watched.past = watched.past or Past()
        watched.past.slow_down(watched.optimizer())
        watched.past.keep(watched, step, capture, clip)

    def step_ended(self, watched: Watched, reading: Reading) -> None:
        """One more step is over."""
        if watched.past is not None:
            watched.past.as_scheduled(watched.optimizer())
        for one in self._in_watch(watched) if not reading.bad else ():
            one.left -= one.step < reading.step
            if one.left == 0:
                one.state = "kept"
                text = f"{one.name} of step {one.step} is kept: {WATCHED_STEPS} finite steps"
                self._record(one, reading.step, text)
                self._run.speech.say(f"step {reading.step}: {text}")

    def _in_watch(self, watched: Watched) -> list[Applied]:
        return [one for one in self.applied if one.state == "applied" and one.watched == watched.number]

    def _undo(self, these: list[Applied], watched: Watched, step: int, why: str) -> None:
        """The newest first, so that each finds what it left."""
        if these and watched.past is not None:
            watched.past.steps.clear()
        for one in reversed(these):
            assert one.undo is not None
            one.undo()
            one.state = "undone"
            text = f"{one.name} of step {one.step} is undone: {why}"
            self._record(one, step, text)
            self._run.speech.say(f"step {step}: {text}")

    def _record(self, one: Applied, step: int, text: str, **more: object) -> None:
        self._run.recorder.event(
            "remedy", step=step, incident=one.incident, cause=one.cause, remedy=one.name, state=one.state,
            action=one.action, text=text, targets=sorted(one.cure.targets), **more,
        )  # fmt: skip

    def summary(self) -> list[str]:
        """What was done to the run and its price, with the same for the user's files; nothing where nothing was."""
        if not self.applied:
            return []
        done: dict[str, list[Applied]] = {}
        for one in self.applied:
            done.setdefault(f"{one.name}, {_end(one)}", []).append(one)
        times = [f"{what} (step {ranges([one.step for one in these])})" for what, these in done.items()]
        price = f"{counted(self._runs, 'run')} of a step more, {self._seconds:.1f} s"
        left = [one for one in self.applied if one.state != "undone"]
        return [f"healed {counted(len(left), 'time')}: {'; '.join(times)}; {price}", *_for_the_files(left)]


def _end(one: Applied) -> str:
    if one.undo is None:
        return "which changed that step alone"
    return one.state if one.state != "applied" else f"still watched, {one.left} steps to go"


def _for_the_files(left: list[Applied]) -> list[str]:
    """One line for each different change, as the user's files would have it."""
    places: dict[str, list[str]] = {}
    for one in left:
        places.setdefault(f"{do(one.remedy)}   ({remedy_note(one.remedy)})", []).extend(one.cure.places)
    return [f"  do               {what}{': ' if where else ''}{'; '.join(where)}" for what, where in places.items()]
