"""Healing: a remedy for a proved cause is tried on the captured step, applied, watched, and kept or undone.

Nothing here is done on a symptom alone, and the verdict of the gate never waits for it. What no remedy can prove is
left as in mode `guard`. Where several ranks train, one of them decides and all do as it says (`heal.together`).
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import Any

from finitune.chapter import causes, remedies
from finitune.finding import Remedy
from finitune.monitor.capture.step import Capture
from finitune.monitor.experiments import STANDS_STILL
from finitune.monitor.heal.applied import (
    FOR_ITS_STEP,
    PARTS,
    WATCHED_STEPS,
    Applied,
    elsewhere,
    end,
    for_the_files,
    times,
)
from finitune.monitor.heal.cure import NOT_REPEATED, Case, Cure, Now, Unable, Undo, established, live, to_resume
from finitune.monitor.heal.past import Past
from finitune.monitor.heal.rewarm import raised
from finitune.monitor.heal.step_again import check_able, followed, put_gradients, taken_here
from finitune.monitor.heal.together import assisted, decided, done_together, may_act, who_decides
from finitune.monitor.incidents import Incidents
from finitune.monitor.investigation import Investigation
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.measurement import ASKS, Reading, Unclipped
from finitune.monitor.replay.limits import Limits, OverBudget
from finitune.monitor.run import Run
from finitune.reports.sentences import counted, several

NOT_PROVED = "no cause is proved, and nothing is changed on a symptom alone"
PARTS_HELD = "remedies are advice where ranks hold parts of a model, or are of no known group"
UNPROVED = "a step is bad, and nothing proves another cause"
LOWERED = "lower-learning-rate"
MOST_PER_INCIDENT = 3
"""Remedies that are tried on one captured step; one that is seen to be unable without running it is none of them."""
MOST_PER_RUN = 16
"""Times that a run is changed; one that needs more is not healed by it."""


class Healing:
    """What was done to one process, and is still watched."""

    def __init__(self, run: Run, incidents: Incidents) -> None:
        self._run = run
        self._incidents = incidents
        incidents.assisted, incidents.asks = assisted, self._asks
        self._looked_at: dict[int, str | None] = {}
        self._runs = 0
        self._seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self.applied: list[Applied] = []
        self._raised: list[Applied] = []
        """A lowered rate that comes back, twofold at a time."""

    def treat(self, watched: Watched, reading: Reading, clip: Unclipped | None) -> None:
        """A step is bad, its verdict was acted on, and the optimizer's own step is still to come; where a remedy gives
        it finite gradients, `watched.given` is True afterwards.
        """
        inquiry = self._incidents.open
        if inquiry is not None and inquiry.optimizer is not watched.optimizer():
            inquiry = None
        with followed(watched):
            if watched.group.size > 1 and may_act(watched):
                self._treat_together(inquiry, watched, reading, waits=True, clip=clip)
            elif inquiry is not None and self._is_news(inquiry):
                self._treat(self._case(inquiry, watched, reading, waits=True, clip=clip))

    def treat_skipped(self, watched: Watched, reading: Reading, clip: Unclipped | None) -> None:
        """The same where a GradScaler has not called the optimizer: what a remedy gives it is taken here."""
        with taken_here(watched):
            self.treat(watched, reading, clip)
        reading.skipped = not watched.given

    def treat_sighted(self, watched: Watched, reading: Reading) -> None:
        """A step is over, and an incident may have been seen in it although every number is finite: a divergence."""
        inquiry = self._sighted(watched)
        if inquiry is not None and watched.group.size > 1:
            self._advise(self._case(inquiry, watched, reading), PARTS_HELD)
        elif inquiry is not None:
            self._treat(self._case(inquiry, watched, reading))

    def _sighted(self, watched: Watched) -> Investigation | None:
        inquiry, self._incidents.sighted = self._incidents.sighted, None
        return inquiry if inquiry is not None and inquiry.optimizer is watched.optimizer() else None

    def _asks(self, watched: Watched) -> bool | None:
        """Whether this rank has seen such an incident; each sees its own loss, and all look into it at the next step,
        before its update. None where no other rank could take part.
        """
        together = watched.group.size > 1 and may_act(watched)
        return watched.number in self._incidents.asking if together else None

    def _treat_asked(self, watched: Watched, reading: Reading) -> None:
        """The gradients of this step are those of weights that a remedy has replaced, so it is discarded with one."""
        look = self._incidents.asking.pop(watched.number, None)
        speaker = who_decides(watched, look is not None)
        with assisted(watched, speaker):
            if look is not None and watched.group.rank == speaker:
                with suppress(Exception):  # what is not known is not acted on, and no rank waits for it
                    look()
        if self._treat_together(self._sighted(watched), watched, reading):
            watched.update.withhold()
            watched.discarded = True

    def _is_news(self, inquiry: Investigation) -> bool:
        """An incident is treated once, and once more where its cause is proved later."""
        number, cause = inquiry.event["id"], established(inquiry)
        news = number not in self._looked_at or self._looked_at[number] != cause
        self._looked_at[number] = cause
        return news

    def _case(
        self, inquiry: Investigation, watched: Watched, reading: Reading, *, waits: bool = False,
        clip: Unclipped | None = None,
    ) -> Case:  # fmt: skip
        return Case(
            cause=established(inquiry) or "", inquiry=inquiry, watched=watched, reading=reading, clip=clip,
            waits=waits and inquiry.event["step"] == reading.step, grad_norms=self._run.signals["grad_norm"],
        )  # fmt: skip

    def _treat(self, case: Case) -> None:
        chosen = self._chosen(case)
        if chosen is None:
            return
        name, module, cure, undo = chosen
        self._take_step(case, undo)
        self._record_applied(case, name, module.action, cure, undo)
        if case.reading.bad:
            self._close_incident(case.watched)

    def _take_step(self, case: Case, undo: Undo | None) -> None:
        """The step itself is not lost where the run stays changed and its gradients can be computed as by the loop."""
        if undo is None or not case.waits or case.watched.given:
            return
        with suppress(Exception):  # it stays discarded, and the next one is taken
            check_able(case.now)
            put_gradients(case.now, lambda: case.inquiry.capture, at_first=True)

    def _treat_together(
        self, inquiry: Investigation | None, watched: Watched, reading: Reading, *, waits: bool = False,
        clip: Unclipped | None = None,
    ) -> bool:  # fmt: skip
        """All ranks call this after every bad step, whatever each of them knows of it. Whether the run was changed."""
        case = None
        if inquiry is not None and self._is_news(inquiry):
            case = self._case(inquiry, watched, reading, waits=waits, clip=clip)
        speaker = who_decides(watched, case is not None and bool(case.cause))
        if speaker is None:
            if case is not None and (watched.group.rank == 0 or not reading.bad):
                self._advise(case, NOT_PROVED)
            undone = self._in_watch(watched) if case is not None and reading.bad else []
            self._undo(undone, watched, reading.step, UNPROVED)
            return False
        chosen: list[Any] = []

        def decide() -> dict[str, Any]:
            assert case is not None
            before = [one.state for one in self.applied]
            for one in self.applied:
                one.quiet = False
            chosen.extend(self._chosen(case, apply=False) or ())
            undone = [n for n, one in enumerate(self.applied) if one.state != before[n]]
            if not chosen:
                return {"undone": undone}
            name, _, cure, _ = chosen
            return {"undone": undone, "name": name, "orders": cure.orders, "targets": sorted(cure.targets)}

        decision = decided(watched, speaker, decide)
        if watched.group.rank != speaker:
            for one in self.applied:
                one.quiet = True
            self._undo([self.applied[n] for n in decision.get("undone", ())], watched, reading.step, "as on its rank")
        module = live(decision["name"]) if "name" in decision else None
        if module is None:
            return False
        now = Now.of(watched, reading, waits, clip, self._run.signals["grad_norm"])
        done, undo = done_together(now, module, decision["orders"])
        if not done:
            if case is not None and chosen:
                self._advise(case, "another rank could not do the same")
            return False
        if case is not None and chosen:
            self._record_applied(case, chosen[0], module.action, chosen[2], undo)
        else:
            self.applied.append(elsewhere(decision, module.action, undo, watched, reading))
        self._close_incident(watched)
        return True

    def _close_incident(self, watched: Watched) -> None:
        """What comes next is an incident of its own."""
        self._incidents.open = None
        watched.settling_from, watched.bad_in_a_row = None, 0

    def _why_not(self, case: Case) -> str | None:
        if not case.cause:
            return NOT_PROVED
        if case.watched.group.size > 1 and not may_act(case.watched):
            return PARTS_HELD
        if case.inquiry.model is None or case.inquiry.capture.runnable is not None:
            return "the step cannot be run again, so no remedy can be tried on it"
        if len(self.applied) >= MOST_PER_RUN:
            return f"the run was changed {MOST_PER_RUN} times already"
        return None

    def _chosen(self, case: Case, *, apply: bool = True) -> tuple[str, ModuleType, Cure, Undo | None] | None:
        """The first remedy of the cause that is proved on the captured step; None, which is said, where there is none.

        With `apply` it has been applied, and can be taken back by what is returned with it.
        """
        case.inquiry.limits = Limits()
        why = self._why_not(case)
        left_out: list[str] = []
        tried = 0
        for name in causes()[case.cause].declared("remedies") if why is None else ():
            module = live(name)
            if module is None:
                left_out.append(f"{name} is advice")
                continue
            if tried >= MOST_PER_INCIDENT:
                break
            try:
                cure: Cure = module.cure(case)
                if case.watched.group.size > 1 and cure.orders is None:
                    raise Unable("it is advice where several ranks train together")
                self._did_not_hold(name, cure, case)
                self._prove(case, cure)
                return name, module, cure, cure.apply() if apply else None
            except (Unable, OverBudget) as reason:
                left_out.append(f"{name}: {reason}")
            finally:
                tried += case.runs > 0
                self._runs, case.runs = self._runs + case.runs, 0
        self._undo(self._in_watch(case.watched) if case.reading.bad else [], case.watched, case.reading.step, UNPROVED)
        self._seconds["cure"] += time.monotonic() - case.inquiry.limits.began
        self._advise(case, why or f"{case.cause}: {'; '.join(left_out) or 'the book has no remedy'}")
        return None

    def _advise(self, case: Case, why: str) -> None:
        step, clean = case.reading.step, to_resume(case, self._run.saves)
        why += f"; {clean.text}" if clean is not None else ""
        self._run.recorder.event(
            "remedy", step=step, incident=case.inquiry.event["id"], state="advice", cause=case.cause or None, text=why,
            resume_from=clean and {"path": clean.path, "step": clean.step},
        )  # fmt: skip
        self._run.speech.say(f"step {step}: not healed: {why}")

    def _did_not_hold(self, name: str, cure: Cure, case: Case) -> None:
        """Raises Unable, and takes the remedy back, where the same was done before and the step is bad all the same."""
        same = [one for one in self.applied if one.name == name and cure.targets <= one.targets]
        if not same:
            return
        watch = [one for one in same if one.state == "applied"]
        self._undo(watch, case.watched, case.reading.step, "the same cause is proved again")
        if any(one.state == "kept" for one in same):
            raise Unable("it is in place, and the step is bad all the same")
        raise Unable("it did not hold")

    def _prove(self, case: Case, cure: Cure) -> None:
        if not case.finite(cure.change):
            raise Unable("the captured step comes out no better with it")
        if cure.placebo is not None and case.finite(cure.placebo):
            raise Unable(f"the captured step comes out as well with {cure.instead}")

    def _record_applied(self, case: Case, name: str, action: str, cure: Cure, undo: Undo | None) -> None:
        step = case.reading.step
        took = {**case.inquiry.seconds, "cure": time.monotonic() - case.inquiry.limits.began}
        for part, seconds in took.items():
            self._seconds[part] += seconds
        one = Applied(
            name=name, cause=case.cause, action=action, targets=cure.targets, places=cure.places, undo=undo,
            watched=case.watched.number, step=step, incident=case.inquiry.event["id"],
            state="applied" if undo is not None else FOR_ITS_STEP,
            remedy=Remedy(name=name, safety=remedies()[name].safety),
        )  # fmt: skip
        self.applied.append(one)  # first of all, so that it can be taken back
        if case.watched.past is not None:
            case.watched.past.steps.clear()  # what was taken before the change is not taken again
        proposed = next((each.remedies for each in case.inquiry.incident().causes if each.cause == case.cause), ())
        one.remedy = next((each for each in proposed if each.name == name), one.remedy)
        if cure.patch is not None:
            one.remedy = replace(one.remedy, patch=cure.patch)
        price = f"; price: {cure.price}" if cure.price else ""
        text = f"{name}: {cure.text}"
        self._record(
            one, step, text, seconds=sum(took.values()), seconds_of=took, price=cure.price, patch=one.remedy.patch,
            command=one.remedy.command, places=list(one.places),
        )  # fmt: skip
        taken = "; the step is taken with it" if undo is not None and case.watched.given else ""
        watch = f"; watched for {WATCHED_STEPS} steps" if undo is not None else ""
        other = f", not with {cure.instead}" if cure.placebo is not None else ""
        is_so = "The update moves weights" if case.inquiry.event["symptom"] in STANDS_STILL else "Finite"
        known = "the step does not repeat" if case.cause == NOT_REPEATED else f"{case.cause}, proved"
        self._run.speech.say(
            f"step {step}: healed ({known}): {text}. {is_so} with it{other}{price}; {times(took)}{taken}{watch}"
        )

    def step_follows(self, watched: Watched, reading: Reading, capture: Capture, clip: Unclipped | None) -> None:
        """A step with finite gradients is about to be taken."""
        if reading.more.get(ASKS):
            self._treat_asked(watched, reading)
        if watched.discarded:
            return
        watched.past = watched.past or Past()
        watched.past.slow_down(watched.optimizer())
        watched.past.keep(watched, reading, capture, clip)

    def step_ended(self, watched: Watched, reading: Reading) -> None:
        """One more step is over."""
        if watched.past is not None:
            watched.past.is_over(watched.optimizer())
        for one in self._in_watch(watched) if not reading.bad else ():
            one.left -= one.step < reading.step
            if one.left == 0:
                one.state, one.undo = "kept", None
                text = f"{one.name} of step {one.step} is kept: {WATCHED_STEPS} finite steps"
                self._say(one, reading.step, text)
        if not reading.bad and not self._in_watch(watched):
            self._raise_rate(watched, reading.step)

    def _raise_rate(self, watched: Watched, step: int) -> None:
        """One remedy ends by itself: the rate comes back to what the schedule sets, as far as the run bears it."""
        lowered = [one for one in self.applied if one.name == LOWERED and one.watched == watched.number]
        undo = raised(watched, step) if lowered else None
        if undo is not None:
            optimizer: Any = watched.optimizer()
            factor, largest = watched.past.factor, max(float(group["lr"]) for group in optimizer.param_groups)
            patch = {"learning_rate": largest * factor} if factor < 1 else {"warmup_steps": step}
            lowered[-1].remedy = replace(lowered[-1].remedy, patch=patch)  # for the user's files
            one = replace(
                lowered[-1], step=step, undo=undo, state="applied", left=WATCHED_STEPS,
                targets=frozenset({f"learning rate times {factor:g}"}),
            )  # fmt: skip
            self._raised.append(one)
            text = (
                f"{LOWERED}: the rate comes back to {factor:g} times the schedule's: the last steps learn more with it"
            )
            self._record(one, step, text, patch=patch, replaces=True)
            self._run.speech.say(f"step {step}: {text}; watched for {WATCHED_STEPS} steps")

    def _in_watch(self, watched: Watched) -> list[Applied]:
        known = (*self.applied, *self._raised)
        return [one for one in known if one.state == "applied" and one.watched == watched.number]

    def _undo(self, these: list[Applied], watched: Watched, step: int, why: str) -> None:
        """The newest first, so that each finds what it left."""
        if these and watched.past is not None:
            watched.past.steps.clear()
        for one in reversed(these):
            assert one.undo is not None
            one.undo()
            one.state, one.undo = "undone", None
            text = f"{one.name} of step {one.step} is undone: {why}"
            self._say(one, step, text)

    def _say(self, one: Applied, step: int, text: str) -> None:
        if not one.quiet:
            self._record(one, step, text)
            self._run.speech.say(f"step {step}: {text}")

    def _record(self, one: Applied, step: int, text: str, **more: object) -> None:
        self._run.recorder.event(
            "remedy", step=step, incident=one.incident, cause=one.cause, remedy=one.name, state=one.state,
            action=one.action, text=text, targets=sorted(one.targets), **more,
        )  # fmt: skip

    def summary(self) -> list[str]:
        """What was done to the run and its price, with the same for the user's files; nothing where nothing was."""
        for look in self._incidents.asking.values():  # what no step has come for
            look()
        if all(one.quiet for one in self.applied):
            return []
        done: dict[str, list[Applied]] = {}
        for one in self.applied:
            done.setdefault(f"{one.name}, {end(one)}", []).append(one)
        what_when = [f"{what} ({several('step', [one.step for one in these])})" for what, these in done.items()]
        price = f"{counted(self._runs, 'run')} of a step more; {times(self._seconds)}"
        left = [one for one in self.applied if one.state != "undone"]
        return [f"healed {counted(len(left), 'time')}: {'; '.join(what_when)}; {price}", *for_the_files(left)]
