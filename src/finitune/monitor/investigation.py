"""A bad step investigated while its weights, batch and random numbers are still there: locate, weigh, experiment.

Writes what it finds into the recording; what it concludes is diagnosis read back from the same facts. Where torch alone
is installed, what was found is recorded all the same, and whoever reads the recording diagnoses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from finitune.finding import Origin, as_json
from finitune.monitor.capture.loose_tensors import LooseTensors
from finitune.monitor.capture.step import Call, Capture, MicroStep
from finitune.monitor.loss_graph.objective import Place, is_factor, node_at, same_form
from finitune.monitor.not_repeated import why_not_repeated
from finitune.monitor.origin.frame_modules import is_inner, module_of
from finitune.monitor.origin.live_watch import LiveWatch, compiles
from finitune.monitor.origin.locate import all_named_tensors, bad_leaf, calls_of, locate
from finitune.monitor.origin.runnable_parts import locate_in_parts
from finitune.monitor.origin.spoilt_buffers import made_by_step, may_be_of_step
from finitune.monitor.origin.waiting_calls import made_by_call
from finitune.monitor.probes.modules import Modules
from finitune.monitor.probes.optimizers import parameters_of
from finitune.monitor.probes.ranks import ALONE, Group
from finitune.monitor.replay.call_results import Results, results_of
from finitune.monitor.replay.fewer_rows import facts_of_samples
from finitune.monitor.replay.limits import Limits, empty_cache
from finitune.monitor.replay.rerun import Outcome, Setting, rerun, why_not_runnable
from finitune.monitor.speech import plainly
from finitune.monitor.statements.bad_value_operators import operator_in
from finitune.monitor.statements.constructors import made_before
from finitune.monitor.statements.data_sets import made_by_data_set
from finitune.monitor.statements.gradient_edits import Gradients, later_edit
from finitune.monitor.statements.own_code import seen
from finitune.monitor.user_code.source_line import calling_line
from finitune.recording import Recorder
from finitune.series import Signals


@dataclass(slots=True, kw_only=True)
class Investigation:
    """One incident under investigation. `passes` counts extra forward-backward runs up to the origin."""

    recorder: Recorder
    model: nn.Module | None
    optimizer: Any
    capture: Capture
    scale: float
    event: dict[str, Any]
    run_facts: Mapping[str, Any]
    """As JSON; empty where they could not be read."""
    signals: Signals
    modules: Modules = field(default_factory=Modules)
    group: Group = ALONE
    written_by: Callable[[Tensor], bool] = lambda _: False
    """Whether nothing but the optimizer has written to a parameter."""
    by_hand: bool = False
    """The loop's own code changes gradients between the backward and the step."""
    left: Gradients = ()
    """The gradients that the last backward left, where the loop changes them."""
    edited: bool = False
    """It has made them bad so."""
    waiting: Callable[[], list[Call]] = list
    """Calls of models in this step whose backward is still to come."""
    past: Any = None
    """The last steps, where mode `heal` keeps them."""
    limits: Limits = field(default_factory=Limits.of_the_investigation)
    origin: Origin | None = None
    layers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    repeats: bool | None = None
    bit_for_bit: bool = False
    passes: int = 0
    why_not: str | None = None
    live: int | None = None
    """The step in which the origin was seen, as that ran."""
    watched_live: bool = False
    compiled: bool = False
    """Compiled code was run as it is written, so that every operator was seen."""
    inside: torch.dtype | None = None
    term: Place | None = None
    """The origin lies in the loop's own code, whose line a later step shows."""
    at_fault: tuple[int, ...] | None = None
    """Samples that make the step non-finite; None where nobody has looked for them."""
    following: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The events of this incident after the first, as the recording has them."""
    seconds: dict[str, float] = field(default_factory=dict[str, float])
    """What it took: `capture`, `locate`, `prove`."""

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the time of a block to that part."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - began

    def setting(self, model: nn.Module | None = None) -> Setting:
        """How the step is run again, with `model` where what is trained belongs to none."""
        model = self.model or model
        assert model is not None
        return Setting(
            model=model, optimizer=self.optimizer, capture=self.capture, scale=self.scale, group=self.group,
            limits=self.limits, past=self.past,
        )  # fmt: skip

    def find_origin(self, observed: Outcome | None) -> None:
        """Name what is bad without any run where a weight or the batch is; run the step once more under watch."""
        with self.timed("locate"):
            known = None
            with suppress(Exception):  # a device error, a tensor of a kind that cannot be looked at
                known = bad_leaf(all_named_tensors(self.model, self.modules), calls_of(self.capture))
            later = known is None and self.event["symptom"] == "nonfinite-gradient"
            spoilt, edit = self._spoilt(known), later_edit(self.left, self.optimizer, self.capture) if later else None
            if (made := spoilt or edit) is not None and made.is_operator:
                self.origin, self.repeats, self.edited = made, True, spoilt is None
                return
            known = spoilt or known
            self._run_again(observed)
            if edit is not None and self.origin is None:
                self.origin, self.repeats, self.edited = edit, None, True
            if known is not None:
                without, why_not = (self.origin, self.repeats), self.why_not
                self.origin, self.repeats, self.why_not = known, self.repeats is None or self.repeats, None
                self._made_by_write()
                if why_not is not None and self.origin is known and may_be_of_step(known, self.model, self.modules):
                    (self.origin, self.repeats), self.why_not = without, why_not
            try:
                bad_loss = self.event["symptom"] == "nonfinite-loss"
                if self.origin is not None and self.origin.phase == "input" and not self.origin.is_operator:
                    made = made_by_data_set(self.origin)
                    self.event |= {"factor": is_factor(self.term), "of_data_set": made.is_operator}
                    self.origin, self.term = made, self.term if made.line is None else None
                able = not self.group.split and (self.model is None or self.limits.why_not(self.model) is None)
                losses = observed.losses if observed is not None and able else ()
                models = [*([] if self.model is None else [self.model]), *self.modules.roots()]
                found = seen(self.origin, self.term, models, losses, self.capture, self._results, bad_loss=bad_loss)
            except Exception as error:  # a variable that cannot be looked at
                found, self.event["statements_missing"] = None, f"{type(error).__name__}: {str(error)[:200]}"
            if found is not None:
                same = (own := self.origin) is not None and own.phase == found.phase not in ("input", "parameter")
                self.term = self.term if same and found.tensor is None else None
                computed = self.repeats is False and not found.is_statement  # again, by its own code
                self.origin, self.repeats = found, computed or self.repeats

    def _spoilt(self, known: Origin | None) -> Origin | None:
        """What has spoilt a buffer or an input within this step; with a bad buffer the steps before would be bad."""
        if known is None or self.model is None or self.group.split:
            return None
        with suppress(Exception):
            if known.phase == "input":
                return made_by_call(known, self.setting(), self.waiting())
            return made_by_step(known, self.setting(), self.modules) if self.event["step"] > 1 else None

    def _run_again(self, observed: Outcome | None) -> None:
        model = self.model or LooseTensors.of(self.capture, self.modules.name)
        if model is None:
            why = self.capture.runnable
            self.why_not = f"what is trained belongs to no module{f', and {why}' if why else ''}"
            return
        self.why_not = why_not_runnable(self.setting(model))
        if self.why_not is not None:
            self._run_parts_again(model)
            return
        try:
            located = locate(self.setting(model))
        except Exception as error:  # out of memory, a model that cannot be called twice: training goes on
            self.why_not = f"the step could not be run again: {type(error).__name__}: {str(error)[:200]}"
            return
        finally:
            empty_cache(model)
        self.passes += 1
        self.origin = located.origin
        self.inside, self.term = located.inside, located.term
        self.layers = [as_json(layer) for layer in located.layers]
        self.compiled = compiles()
        outcome = self._run_compiled(model) if located.outcome.passed and self.compiled else located.outcome
        self.repeats = None if outcome is None else not outcome.passed
        if self.repeats and self.origin is None and self.why_not is None:
            self.why_not = located.failed or "no operator of the model or the loss made it out of finite numbers"
        self.bit_for_bit = bool(observed and outcome and observed.same_losses(outcome))
        if self.repeats is False and (why := why_not_repeated(self, observed)) is not None:
            self.why_not, self.repeats = why, None

    def _run_parts_again(self, model: nn.Module) -> None:
        """Where the whole step cannot be; what a loss was computed of may have been bad already."""
        if self.group.split or self.limits.why_not(model) is not None:
            return
        bad_loss = self.event["symptom"] == "nonfinite-loss"
        self.origin, self.term = locate_in_parts(self.setting(model), self.modules.name, bad_loss=bad_loss)
        empty_cache(model)
        self.passes += 1
        if self.origin is not None:
            self.repeats, self.why_not = True, None

    def _results(self) -> Results:
        """What the calls of the step return when they are made again, where its loss tells too little."""
        model = self.model or LooseTensors.of(self.capture, self.modules.name)
        told = self.origin is None and self.why_not is None
        if told or model is None or self.group.split or self.limits.why_not(model) is not None:
            return {}
        self.passes += 1
        return results_of(self.setting(model))

    def _run_compiled(self, model: nn.Module | LooseTensors) -> Outcome | None:
        """What is finite operator by operator, run once more as it was compiled; None where that cannot be done."""
        self.passes += 1
        try:
            outcome = rerun(self.setting(model))
        except Exception as error:
            self.why_not = f"what is compiled could not be run again: {type(error).__name__}: {str(error)[:200]}"
            return None
        if not outcome.passed:
            self.why_not = "compiled code makes it; operator by operator, as it is written, the step is finite"
        return outcome

    @property
    def knows(self) -> tuple[bool, bool]:
        """It is bad again, for a reason that is known; the operator is known that made it."""
        return bool(self.repeats) and self.origin is not None, self.origin is not None and self.origin.is_operator

    @property
    def is_located(self) -> bool:  # more than the statement
        return self.origin is not None and not self.origin.is_statement

    def is_made_in(self, live: LiveWatch) -> bool:
        """Whether a watched step has shown an operator of the loop that makes what this one has as a bad input."""
        own, found = self.origin, live.watch.found(bad_loss=self.event["symptom"] == "nonfinite-loss")
        return own is not None and found is not None and own.phase == "input" and found.shape == own.shape

    def locate_live(self, live: LiveWatch, capture: Capture, step: int) -> bool:
        """Whether a step that was watched live has shown the origin: of a bad input, what the loop made it with."""
        if self.is_located and self.origin is not None and self.origin.phase != "input":
            return True
        found = bad_leaf(all_named_tensors(self.model, self.modules), calls_of(capture))
        if found is None or found.phase == "input" or may_be_of_step(found, self.model, self.modules):
            found = live.found(self.origin, left=found, bad_loss=self.event["symptom"] == "nonfinite-loss")
            if found is not None and self.by_hand and live.watch.after_backward and found.phase == "forward":
                found = replace(found, phase="backward")
        self.live, self.compiled = step, live.compiled
        self.layers = self.layers or [as_json(layer) for layer in live.watch.layers]
        if found is None:
            return False
        self.origin, self.why_not, self.term = found, None, None
        self.repeats = True if step != self.event["step"] else self.repeats
        return True

    def find_line(self, live: LiveWatch, micro: MicroStep, root: Tensor) -> bool:
        """Whether a step that is watched shows more of the origin's line: that of the same operator in what the loop's
        own code computes.
        """
        own = self.origin
        if own is None or self.is_made_in(live):
            return False  # which the verdict on that step tells
        for computed, end in micro.computed(root):
            if self.term is None or not same_form(self.term[0], computed.whole):
                continue
            node = node_at(end, self.term)
            line, module = (None, None) if node is None else live.watch.place_of(node)
            self.term = None
            made = operator_in(line) if line and own.phase == "input" else None
            module = module if is_inner(module, self.modules) else own.module
            self.origin = replace(own, line=line or own.line, op=made or own.op, module=module)
            return self.origin != own
        return False

    def _made_by_write(self) -> None:
        """Of a parameter that an update of the last steps has made bad, that is the origin; not where the same updates,
        taken again from weights that were kept, give finite ones. Of a buffer, the statement that has written to it.
        """
        own = self.origin
        if own is None or own.phase != "parameter":
            return
        bad = [p for p in parameters_of(self.optimizer) if self.modules.name(p) == own.tensor]
        if not bad:
            if self._is_buffer(own.tensor):
                self.origin = made_before(own, self.modules, is_first=self.event["step"] == 1) or own
            return
        if not self.written_by(bad[0]):
            return
        if self.past is not None and self.past.gives_finite(self.setting()):
            self.event["changed_in_memory"] = own.tensor
        else:
            self.blame_optimizer(own)

    def _is_buffer(self, name: str | None) -> bool:
        found = (tensor for known, tensor in all_named_tensors(self.model, self.modules) if known == name)
        return not isinstance(next(found, None), nn.Parameter | None)

    def blame_optimizer(self, seen: Origin) -> None:
        """The origin is the optimizer's own arithmetic, seen at a parameter."""
        step = f"{type(self.optimizer).__name__}.step"
        self.origin = replace(seen, op=step, phase="optimizer", line=calling_line())

    def blame_update_of(self, name: str, dtype: str, seen: Origin | None = None) -> None:
        """The same, where nothing of the parameter is known but its name; the operator of the update may be `seen`."""
        module = name.rpartition(".")[0]
        known = Origin(module=module, op="parameter", phase="parameter", dtype=dtype, values="nan or inf", tensor=name)
        self.blame_optimizer(known)
        if seen is not None:
            self.origin = replace(seen, line=seen.line or (self.origin and self.origin.line))

    def record(self) -> None:
        """Write the incident with the facts of its batch, then the origin. What fails of it is left out, alone."""
        try:
            from finitune.monitor.capture.batch_facts import facts_of_batch

            self.event["facts"] |= facts_of_batch(self.model, self.capture)
        except Exception as error:  # no numpy here, no memory left, a tensor that cannot be read
            self.event["facts_missing"] = f"{type(error).__name__}: {str(error)[:200]}"
        with self.timed("capture"):
            self.event |= facts_of_samples(self.capture)
            self.event |= self._save_capture()
        self.recorder.event("incident", **self.event)
        self.record_origin()

    def record_origin(self) -> None:
        own = self.origin
        if own is not None and own.line and own.phase in ("forward", "backward"):
            self.origin = replace(own, module=module_of(own.line, self.modules, own.module))
        self.record_event(
            "origin", origin=self.origin, repeats=self.repeats, bit_for_bit=self.bit_for_bit, passes=self.passes,
            layers=self.layers, why_not=self.why_not, live=self.live, compiled=self.compiled,
        )  # fmt: skip

    def _save_capture(self) -> dict[str, Any]:
        """Path of the capture, relative to the recording, and whether another process can run it again; a disk that
        is full costs the capture alone.
        """
        if self.model is None:
            return {"capture": None, "runs_elsewhere": False}
        try:
            from finitune.monitor.capture.step_files import save_capture

            saved = save_capture(
                self.capture, self.model, self.recorder.captures,
                step=self.event["step"], rank=self.recorder.rank, scale=self.scale, inside=self.inside,
            )  # fmt: skip
        except OSError as error:
            return {"capture": f"not written: {error.strerror}"}
        except Exception as error:  # a model that cannot be described
            return {"capture": f"not written: {type(error).__name__}: {str(error)[:200]}"}
        path, elsewhere = saved or (None, False)
        return {"capture": path and str(path.relative_to(self.recorder.directory)), "runs_elsewhere": elsewhere}

    def incident(self, *, contenders: int | Literal["all"] | None = None) -> Any:
        """The incident as `finitune diagnose` will read it from the recording, or with the causes to test."""
        from finitune.diagnosis.recorded import incident_of
        from finitune.facts_json import facts_from_json

        facts = facts_from_json(self.run_facts)
        return incident_of(
            self.event, self.following, facts, self.signals, self.recorder.directory, contenders=contenders
        )

    def lines(self, *, again: bool = False) -> list[str]:
        """What is said of it: the diagnosis, or where that cannot be made here, what was seen."""
        try:
            from finitune.reports.terminal import incident_lines

            lines = incident_lines(self.incident(), run_dir=str(self.recorder.directory))
        except ImportError:  # whoever reads the recording diagnoses
            self.record_event("undiagnosed")
            lines = self._plain_lines()
        except Exception as error:
            lines = [*self._plain_lines(), f"  not diagnosed here  {type(error).__name__}: {str(error)[:200]}"]
        if self.group.split:
            lines.append(
                "  not tried        experiments: the model is sharded over ranks, which would have to run them together"
            )
        return [f"seen again in the step after it, operator by operator: {lines[0]}", *lines[1:]] if again else lines

    def _plain_lines(self) -> list[str]:
        discarded = " Update discarded." if self.event["action"] == "skipped-step" else ""
        return [
            f"step {self.event['step']}: {self.event['text']}.{discarded}",
            f"  first bad value  {plainly(self.origin) if self.origin else self.why_not or 'not known'}",
            f"  more             finitune diagnose {self.recorder.directory}",
        ]

    def arms(self) -> list[dict[str, Any]]:
        return [event for event in self.following if event["event"] == "arm"]

    def record_event(self, event: str, **fields: Any) -> None:
        self.recorder.event(event, step=self.event["step"], incident=self.event["id"], **fields)
        self.following.append(as_json({"event": event, "step": self.event["step"], **fields}))

    def proved(self) -> str | None:
        """The cause that is proved, None where none is."""
        try:
            return next((one.cause for one in self.incident().causes if one.proved), None)
        except ImportError:  # nothing beside torch is installed here
            return None
