"""What to make of a bad step: settling scaler, known incident, new incident; and when a run must end."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from finitune.chapter import sightings
from finitune.facts import Facts
from finitune.finding import Incident, as_json
from finitune.monitor.earlier_batches import Yardstick
from finitune.monitor.investigation import Investigation, is_sound
from finitune.monitor.probes.live_facts import run_facts
from finitune.monitor.probes.measurement import Reading
from finitune.monitor.probes.names import parameter_names
from finitune.monitor.probes.ranks import agree, is_spread
from finitune.monitor.probes.update import Update
from finitune.monitor.reduction import ReductionCheck
from finitune.monitor.replay.capture import Capture
from finitune.monitor.replay.rerun import Outcome, Setting, own_gradients
from finitune.recording import Recorder
from finitune.reports.terminal import incident_lines
from finitune.series import Series
from finitune.signals import SIGNALS
from finitune.symptoms.loss_scale_collapse import steps_left

Mode = Literal["observe", "guard"]

PATIENCE = 3
"""Bad steps in a row after which a fault counts as persistent."""
RECENT, RECENT_BAD = 20, 10
"""A fault is persistent too when so many of so many recent steps were bad."""
MAX_INVESTIGATIONS = 20
ALERTS = 100
"""The newest are kept for a tracker that asks less often."""
SETTLED_SCALE = 2.0**10
"""A sound float16 run bears a loss scale of 2**10 and more (seed incident 000: 2**13 to 2**15)."""
EDGE = 2.0
"""An overflow of the loss scale repeats at this many times its scale, and a sum over ranks at as many more; one that
does not repeat even there is none of the scaler's business."""
RECHECK_SCALE = 16.0
"""A settling loss scale is looked at again each time it has fallen by this factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The run that is watched, and where its recording goes."""

    model: nn.Module
    update: Update
    recorder: Recorder
    mode: Mode
    world: int
    signals: dict[str, Series]
    alerts: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=ALERTS))
    """What was said, as (number from 1, text): trackers pass it on."""

    @property
    def run_dir(self) -> Path:
        return self.recorder.directory

    def say(self, *lines: str) -> None:
        self.alerts.append((self.alerts[-1][0] + 1 if self.alerts else 1, "\n".join(lines)))
        print("finitune: " + "\n".join(lines), file=sys.stderr, flush=True)


def watched(model: nn.Module, update: Update, recorder: Recorder, mode: Mode, world: int) -> Watched:
    signals = {name: Series() for name in SIGNALS}
    return Watched(model=model, update=update, recorder=recorder, mode=mode, world=world, signals=signals)


class Incidents:
    """The incidents of one run. Every method that takes part in a rank reduction is called by all ranks alike."""

    def __init__(self, run: Watched) -> None:
        self._run = run
        self._facts: Facts | None = None
        self._yardstick = Yardstick()
        self._count = 0
        self._open: dict[str, Any] | None = None
        self._bad_in_a_row = 0
        self._recent: deque[bool] = deque(maxlen=RECENT)
        self._settling_from: float | None = None
        self._looked = 0
        self._mismatched = False
        self._spread = is_spread(run.update.parameters())

    def bad(self, reading: Reading, capture: Capture, *, may_settle: bool) -> None:
        """A step is not sound. `may_settle`: the loop's own scaler skips it, normal until proved otherwise."""
        self._describe_run(capture)
        self._looked = 0
        may_settle = may_settle and not reading.bad_loss and self._open is None
        if may_settle and self._is_settling(reading, capture) and not self._has_collapsed(reading):
            return
        self._bad_in_a_row += 1
        if self._open is not None:
            self._continue(reading)
        else:
            self._investigate(reading, capture, may_settle=may_settle)

    def bad_update(self, reading: Reading, capture: Capture, spoiled: list[nn.Parameter]) -> None:
        """Loss and gradients were finite, the weights that the optimizer made of them not; they have been put back."""
        self._describe_run(capture)
        self._bad_in_a_row += 1
        if self._open is not None:
            self._continue(reading)
            return
        names = parameter_names(self._run.model)
        inquiry = self._inquiry(reading, capture, "nonfinite-update", reading.what, passes=0)
        inquiry.event["bad"] = [names.get(id(p), "?") for p in spoiled][:100]
        self._open = inquiry.event
        inquiry.blame_optimizer(names.get(id(spoiled[0]), "?"), spoiled[0])
        inquiry.record()
        inquiry.prove()
        self._tell(inquiry.incident())

    def compare_reduction(self, check: ReductionCheck, reading: Reading, capture: Capture) -> None:
        """Finite gradients may still be wrong: where ranks averaged others than they computed, say so."""
        if not check.looks_at(reading.step):
            return
        setting = Setting(model=self._run.model, capture=capture, scale=reading.scale)
        again = partial(own_gradients, setting) if capture.runnable is None else lambda _: []
        seen = check.end(reading.step, self._run.update.gradients(), again)
        if seen is None or reading.bad:
            return
        reading.reduction_error = seen.worst
        if not seen.wrong or self._mismatched:
            return
        self._mismatched = True  # told once: a race goes on for the whole run
        self._describe_run(capture)
        inquiry = self._inquiry(reading, capture, "wrong-reduction", seen.text, passes=int(seen.repeats is not None))
        inquiry.event |= {"bad": list(seen.names), "action": "none", "reduction": as_json(seen)}
        inquiry.repeats, inquiry.why_not = False, "every number is finite"
        inquiry.record()
        self._tell(inquiry.incident())

    def over(self, reading: Reading, capture: Capture) -> str | None:
        """A step has ended. Returns why the run must end, None while it may go on."""
        self._describe_run(capture)
        self._recent.append(reading.bad and self._open is not None)
        if not reading.bad:
            self._open, self._settling_from, self._bad_in_a_row = None, None, 0
            self._look_for_divergence(reading, capture)
            return None
        return self._persistent()

    @property
    def open_id(self) -> int | None:
        return self._open["id"] if self._open else None

    def _persistent(self) -> str | None:
        if self._run.mode != "guard" or self._open is None or self._open["settles"]:
            return None
        if self._bad_in_a_row >= PATIENCE:
            return f"the fault persists ({self._bad_in_a_row} steps in a row)"
        if sum(self._recent) >= RECENT_BAD:
            return f"the fault persists ({sum(self._recent)} of the last {len(self._recent)} steps)"
        return None

    def _is_settling(self, reading: Reading, capture: Capture) -> bool:
        """True for an overflow that a somewhat lower loss scale cures, and that is there again at its own."""
        if self._settling_from is not None and reading.scale * RECHECK_SCALE > self._settling_from:
            return True
        (unsound,) = agree(self._is_sound_at(min(SETTLED_SCALE, reading.scale / 4), reading, capture) is not True)
        settles = False
        if not unsound:
            upper = reading.scale * EDGE * self._run.world
            (settles,) = agree(self._is_sound_at(upper, reading, capture) is False)
        self._settling_from = reading.scale if settles else None
        return settles

    def _is_sound_at(self, scale: float, reading: Reading, capture: Capture) -> bool | None:
        self._looked += 1
        return is_sound(Setting(model=self._run.model, capture=capture, scale=reading.scale, run_scale=scale))

    def _has_collapsed(self, reading: Reading) -> bool:
        """True when the scaler has been skipping for so long that it is no settling any more."""
        signals = {name: self._run.signals[name].until(reading.step) for name in ("loss_scale", "skipped")}
        signals["loss_scale"].add(reading.step, reading.scale)
        signals["skipped"].add(reading.step, 1.0)
        return any(seen.symptom == "loss-scale-collapse" for seen in sightings(signals))

    def _continue(self, reading: Reading) -> None:
        assert self._open is not None
        text = f"{reading.what}. {self._consequence(reading)}{self._forecast(reading)}"
        self._run.recorder.event(
            "action", step=reading.step, incident=self._open["id"], action=self._open["action"], text=text
        )  # fmt: skip
        if self._run.recorder.rank == 0:
            self._run.say(f"step {reading.step}: {text}")

    def _investigate(self, reading: Reading, capture: Capture, *, may_settle: bool) -> None:
        symptom = "nonfinite-loss" if reading.bad_loss else "nonfinite-gradient"
        if self._settling_from is not None:
            symptom = "loss-scale-collapse"
        inquiry = self._inquiry(reading, capture, symptom, reading.what, passes=self._looked)
        self._open = inquiry.event
        for name, value in (("loss", reading.loss), ("grad_norm", reading.grad_norm)):
            self._run.signals[name].add(reading.step, value)
        if self._count <= MAX_INVESTIGATIONS:
            inquiry.find_origin(Outcome(losses=reading.losses, norms=reading.norms))
            repeats_here = bool(inquiry.repeats) and (inquiry.origin is not None or not inquiry.is_spread)
            (elsewhere,) = agree(repeats_here)
            (again,) = agree(bool(inquiry.repeats))
            # A scaler that will find a scale low enough is the loop's own business, however long it takes.
            inquiry.event["settles"] = (
                may_settle and again and not any(agree(inquiry.result("loss-scale-1") != "finite"))
            )
            if not repeats_here and elsewhere:
                return  # it repeats on another rank, which will say so
            inquiry.record()
            inquiry.prove()
        else:
            inquiry.why_not = f"more than {MAX_INVESTIGATIONS} incidents in this run"
            inquiry.record()
        self._tell(inquiry.incident())

    def _look_for_divergence(self, reading: Reading, capture: Capture) -> None:
        """Finite, but is the loss running away? Earlier batches decide between divergence and other data."""
        if self._spread:
            return  # the ranks see different losses, and one alone cannot run the model
        seen = next((s for s in sightings(self._run.signals) if s.symptom == "divergence"), None)
        if seen is None:
            self._yardstick.keep(reading.step, capture, sum(reading.losses))
        elif not self._yardstick.asked_at(reading.step) and self._yardstick.is_damaged(self._run.model):
            inquiry = self._inquiry(reading, capture, "divergence", seen.text, passes=0)
            inquiry.why_not = "every number of this step is finite"
            inquiry.record()
            inquiry.prove()
            self._tell(inquiry.incident())

    def _inquiry(self, reading: Reading, capture: Capture, symptom: str, text: str, passes: int) -> Investigation:
        self._count += 1
        discards = self._run.mode == "guard" and symptom != "divergence"
        names = parameter_names(self._run.model)
        graded = [names.get(id(p), "?") for p, _ in self._run.update.gradients()]
        bad = [name for name, norm in zip(graded, reading.norms.tolist(), strict=False) if not math.isfinite(norm)]
        assert self._facts is not None
        return Investigation(
            recorder=self._run.recorder,
            model=self._run.model,
            optimizer=self._run.update.optimizer,
            capture=capture,
            scale=reading.scale,
            run_facts=self._facts,
            signals=self._run.signals,
            passes=passes,
            event={
                "step": reading.step,
                "id": self._run.recorder.earlier_incidents + self._count,
                "symptom": symptom,
                "text": text,
                "bad": bad[:100],
                "tensors": len(reading.norms),
                "loss": reading.loss,
                "grad_norm": reading.grad_norm,
                "loss_scale": reading.scale,
                "action": "skipped-step" if discards else "none",
                "settles": False,
                "last_good": reading.step - 1 if reading.bad else self._yardstick.last_step,
            },
        )

    def _consequence(self, reading: Reading) -> str:
        if self._run.mode == "observe":
            return "Only observed, nothing was changed."
        who = "The trainer skips it" if reading.skipped or self._run.update.skips_overflows else "Update discarded"
        last_good = self._open["last_good"] if self._open else reading.step - 1
        return f"{who}; weights are those of step {last_good}."

    def _forecast(self, reading: Reading) -> str:
        """How long a loss scale that falls with every bad step will last."""
        scales = self._run.signals["loss_scale"].until(reading.step - 1)
        scales.add(reading.step, reading.scale)
        left = steps_left(scales)
        return f" Loss scale {reading.scale:g}; at this rate at its minimum in {left} steps." if left else ""

    def _tell(self, incident: Incident) -> None:
        lines = incident_lines(incident, run_dir=str(self._run.run_dir))
        if self._spread:
            lines.append(
                "  not tried        experiments: the model is spread over ranks, which would have to run them together"
            )
        self._run.say(*lines)

    def _describe_run(self, capture: Capture) -> None:
        """Once the first step has shown the dtype of its forward, write the header of the recording."""
        if self._facts is not None:
            return
        micro = next((m for m in capture.micro_steps if m.calls), None)
        dtype: torch.dtype | None = micro.calls[0].autocast.dtype if micro else None
        self._facts = run_facts(self._run.model, self._run.update.optimizer, dtype)
        self._run.recorder.header(
            self._facts, mode=self._run.mode, world=self._run.world, command=sys.argv, started=time.time()
        )
