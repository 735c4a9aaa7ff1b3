"""A bad step investigated while its weights, batch and random numbers are still there: locate, weigh, experiment.

Writes what it finds into the recording; what it concludes is diagnosis read back from the same facts. Where the
packages that a diagnosis needs are not installed beside torch, what was found is recorded all the same, and whoever
reads the recording diagnoses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from finitune.finding import Origin, as_json
from finitune.monitor.probes.modules import Modules
from finitune.monitor.probes.ranks import ALONE, Group
from finitune.monitor.replay.arms import arm
from finitune.monitor.replay.capture import Capture, MicroStep
from finitune.monitor.replay.fewer_rows import guilty, peaks, rows_of
from finitune.monitor.replay.limits import Limits
from finitune.monitor.replay.live_watch import LiveWatch
from finitune.monitor.replay.locate import bad_leaf, calls_of, locate, named_tensors
from finitune.monitor.replay.objective import Place, node_at, same_form
from finitune.monitor.replay.placeholders import placeholders
from finitune.monitor.replay.rerun import Outcome, Setting, rerun, silences_hooks, why_not_runnable
from finitune.recording import Recorder
from finitune.series import Signals, lowest_level

MAX_EXPERIMENTS = 8
DIVERGED = 4.0
"""A loss this many times the lowest of the run is no healthy step, finite or not."""
BEARABLE_SCALE = 2.0**10
"""A loss that is bad by itself is examined at a loss scale that a healthy float16 run bears; a scale that has yet to
settle would spoil the gradients of an arm that cures."""
CONTENDERS = 2
"""How many leading causes are put to the test."""


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
    past: Any = None
    """The last steps, where mode `heal` keeps them."""
    limits: Limits = field(default_factory=Limits)
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

    def setting(self) -> Setting:
        assert self.model is not None
        return Setting(
            model=self.model, optimizer=self.optimizer, capture=self.capture, scale=self.scale, group=self.group,
            limits=self.limits, past=self.past,
        )  # fmt: skip

    def find_origin(self, observed: Outcome | None) -> None:
        """Name what is bad without any run where a weight or the batch is; run the step once more under watch."""
        try:
            known = bad_leaf(self._named_tensors(), calls_of(self.capture))
        except Exception:  # a device error, a tensor of a kind that cannot be looked at
            known = None
        self._run_again(observed)
        if known is not None:
            self.origin, self.repeats = known, True if self.repeats is None else self.repeats
            self.why_not = None

    def _run_again(self, observed: Outcome | None) -> None:
        if self.model is None:
            self.why_not = "what is trained belongs to no module"
            return
        self.why_not = why_not_runnable(self.setting())
        if self.why_not is not None:
            return
        try:
            located = locate(self.setting())
        except Exception as error:  # out of memory, a model that cannot be called twice: training goes on
            self.why_not = f"the step could not be run again: {type(error).__name__}: {str(error)[:200]}"
            return
        finally:
            _empty_cache(self.model)
        self.passes += 1
        self.origin = located.origin
        self.inside, self.term = located.inside, located.term
        self.layers = [as_json(layer) for layer in located.layers]
        self.repeats = not located.outcome.sound
        self.compiled = any(micro.compiled for micro in self.capture.micro_steps)
        if self.repeats and self.origin is None:
            self.why_not = "no operator of the model or the loss made it out of finite numbers"
        self.bit_for_bit = observed is not None and _same_bits(observed.losses, located.outcome.losses)
        if not self.repeats:
            self._why_it_does_not_repeat(observed)

    def _why_it_does_not_repeat(self, observed: Outcome | None) -> None:
        """A step that comes out finite is a sign of a fault in time or hardware only where all of it was run again."""
        bad_loss = observed is not None and not all(map(math.isfinite, observed.losses))
        constant = any(micro.objective and micro.objective.constant for micro in self.capture.micro_steps)
        if self.model is not None and silences_hooks(self.model):
            self.why_not = "hooks on accumulated gradients are not run again, and one of them may have made it"
        elif not bad_loss and len(self.modules.owners([p for g in _groups(self.optimizer) for p in g])) > 1:
            self.why_not = "a part of what is trained belongs to another module, and may have made it"
        elif bad_loss and constant:
            self.why_not = "a term of the loss without a graph was not kept, so the step cannot be run again as it was"
        elif self.compiled:
            self.why_not = "compiled code was run as it is written, and may compute otherwise"
        elif observed is not None and not bad_loss and not self.bit_for_bit:
            self.why_not = "the loss did not come out the same, so something of the step is missing in the replay"
        else:
            return
        self.repeats = None

    def locate_live(self, live: LiveWatch, capture: Capture, step: int) -> None:
        """What the next step showed, which was watched as it ran."""
        known = bad_leaf(self._named_tensors(), calls_of(capture))
        self.origin = known or live.watch.found(bad_loss=self.event["symptom"] == "nonfinite-loss")
        self.live, self.compiled = step, live.compiled
        self.layers = self.layers or [as_json(layer) for layer in live.watch.layers]
        if self.origin is None:
            return
        self.repeats = True if step != self.event["step"] else self.repeats
        self.why_not = None

    def find_line(self, live: LiveWatch, micro: MicroStep, root: Tensor) -> bool:
        """Whether a step that is watched shows the line of the origin: that of the same operator in what the loop's own
        code computes.
        """
        for computed, end in micro.computed(root):
            if self.origin is None or self.term is None or not same_form(self.term[0], computed.whole):
                continue
            node = node_at(end, self.term[1])
            line = None if node is None else live.watch.line_of(node)
            self.term = None
            self.origin = replace(self.origin, line=line or self.origin.line)
            return line is not None
        return False

    def _named_tensors(self) -> Iterator[tuple[str, Any]]:
        roots = [self.model] if self.model is not None else []
        for root in roots:
            yield from named_tensors(root)
        seen = {id(t) for root in roots for _, t in named_tensors(root)}
        for root in self.modules.roots():
            for _, tensor in named_tensors(root):
                if id(tensor) not in seen:
                    yield self.modules.name(tensor), tensor

    def blame_optimizer(self, name: str, dtype: str) -> None:
        """The origin is the optimizer's own arithmetic, seen at the parameter `name`."""
        step = f"{type(self.optimizer).__name__}.step"
        module = name.rpartition(".")[0]
        self.origin = Origin(module=module, op=step, phase="optimizer", dtype=dtype, values="nan or inf", tensor=name)

    def record(self) -> None:
        """Write the incident with the facts of its batch, then the origin. What fails of it is left out, alone."""
        try:
            from finitune.monitor.probes.batch_facts import facts_of_batch

            self.event["facts"] = facts_of_batch(self.model, self.capture)
        except Exception as error:  # no numpy here, no memory left, a tensor that cannot be read
            self.event["facts_missing"] = f"{type(error).__name__}: {str(error)[:200]}"
        self.event["sample_peaks"] = peaks(self.capture)
        self.event |= self._save_capture()
        self.recorder.event("incident", **self.event)
        self.record_origin()

    def record_origin(self) -> None:
        self._record(
            "origin",
            origin=self.origin,
            repeats=self.repeats,
            bit_for_bit=self.bit_for_bit,
            passes=self.passes,
            layers=self.layers,
            why_not=self.why_not,
            live=self.live,
            compiled=self.compiled,
        )

    def _save_capture(self) -> dict[str, Any]:
        """Path of the capture, relative to the recording, and whether another process can run it again; a disk that
        is full costs the capture alone.
        """
        if self.model is None:
            return {"capture": None, "runs_elsewhere": False}
        try:
            from finitune.monitor.replay.capture_files import save_capture

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

    def incident(self) -> Any:
        """The incident as `finitune diagnose` will read it from the recording."""
        from finitune.diagnosis.recorded import incident_of
        from finitune.facts_json import facts_from_json

        facts = facts_from_json(self.run_facts)
        return incident_of(self.event, self.following, facts, self.signals, self.recorder.directory)

    def lines(self, *, again: bool = False) -> list[str]:
        """What is said of it: the diagnosis, or where that cannot be made here, what was seen."""
        try:
            from finitune.reports.terminal import incident_lines

            lines = incident_lines(self.incident(), run_dir=str(self.recorder.directory))
        except ImportError:  # whoever reads the recording diagnoses
            self._record("undiagnosed")
            lines = self._plain_lines()
        except Exception as error:
            lines = [*self._plain_lines(), f"  not diagnosed here  {type(error).__name__}: {str(error)[:200]}"]
        if self.group.split:
            lines.append(
                "  not tried        experiments: the model is sharded over ranks, which would have to run them together"
            )
        return [f"seen again in the step after it, operator by operator: {lines[0]}", *lines[1:]] if again else lines

    def _plain_lines(self) -> list[str]:
        origin = self.origin
        where = self.why_not or "not known"
        if origin is not None:
            where = f"{origin.module or 'the loss'}, {origin.op} ({origin.phase}), {origin.dtype}: {origin.values}"
            where += f"; {origin.line}" if origin.line else ""
        return [
            f"step {self.event['step']}: {self.event['text']}.",
            f"  first bad value  {where}",
            f"  more             finitune diagnose {self.recorder.directory}",
        ]

    def prove(self, *, contenders: int = CONTENDERS, most: int = MAX_EXPERIMENTS) -> None:
        """Put the leading causes to the test until one is proved, with `most` experiments in all.

        Not on a model that is held in parts on several ranks: an arm that exchanges weights does not reach them.
        """
        if self.model is None or self.capture.runnable is not None or self.group.split:
            return
        try:
            from finitune.diagnosis.ranking import experiments_of, proof_of

            for contender in self.incident().causes[:contenders]:
                if len(self.arms()) >= most or self.limits.left <= 0:
                    break
                for experiment in experiments_of(contender.cause):
                    self._try(contender.cause, experiment)
                if proof_of([event for event in self.arms() if event["cause"] == contender.cause]):
                    break
        except ImportError:  # nothing beside torch is installed here
            return
        finally:
            _empty_cache(self.model)

    def _try(self, cause: str, experiment: Any) -> None:
        for spelling in self._spellings(experiment):
            if any((e["arm"], e["cause"]) == (spelling, cause) for e in self.arms()):
                continue
            known = next((e for e in self.arms() if e["arm"] == spelling), None)
            result = known["result"] if known else self.result(spelling)
            if result is not None:
                self._record(
                    "arm", arm=spelling, cause=cause, expect=experiment.expect, result=result,
                    placebo=experiment.placebo, optional=experiment.optional,
                )  # fmt: skip

    def arms(self) -> list[dict[str, Any]]:
        return [event for event in self.following if event["event"] == "arm"]

    def _record(self, event: str, **fields: Any) -> None:
        self.recorder.event(event, step=self.event["step"], incident=self.event["id"], **fields)
        self.following.append(as_json({"event": event, "step": self.event["step"], **fields}))

    def result(self, spelling: str) -> str | None:
        """How the step comes out: finite, non-finite, or diverged (a finite loss far above the run's own).

        None where the arm does not apply to this step, or where the budget is used up.
        """
        try:
            function, arguments = arm(spelling)
            return self.outcome(lambda setting: function(setting, *arguments))
        except ValueError:  # no such arm
            return None

    def outcome(self, change: Callable[[Setting], AbstractContextManager[None]]) -> str | None:
        """The same under any change of the step or of the model."""
        try:
            setting = self.setting()
            if self.event["symptom"] == "nonfinite-loss" and setting.scale > BEARABLE_SCALE:
                setting.run_scale = BEARABLE_SCALE
            outcome = rerun(setting, change(setting))
        except Exception:  # an arm that the model or the batch does not support proves nothing
            return None
        loss = sum(outcome.losses) / (setting.run_scale or setting.scale)
        lowest = lowest_level(self.signals["loss"].window(len(self.signals["loss"])))
        if outcome.sound and lowest is not None and loss > DIVERGED * lowest:
            return "diverged"
        return "finite" if outcome.sound else "non-finite"

    def _spellings(self, experiment: Any) -> Iterator[str]:
        """The experiment's arm with its placeholders filled; nothing where one of them has no value here."""
        text = experiment.arm
        known = placeholders(self.model, self.origin, self.event.get("facts"))
        if "{bad_rows}" in text or "{other_samples}" in text:
            known = {**known, **self._samples_at_fault()}
        for placeholder, value in known.items():
            if placeholder in text:
                if value is None:
                    return
                text = text.replace(placeholder, value)
        yield text

    def _samples_at_fault(self) -> Mapping[str, str | None]:
        """Samples that make the step non-finite, and as many others; None where no few do."""
        if self.at_fault is None:
            self.at_fault = ()
            with suppress(Exception):  # samples that cannot be told apart, a budget that is used up
                hints = self.origin.rows if self.origin and self.origin.rows else ()
                self.at_fault = guilty(self.capture, self._is_finite, hints)
        others = [row for row in range(sum(map(rows_of, self.capture.micro_steps))) if row not in self.at_fault]
        join = lambda rows: ",".join(map(str, rows)) or None  # noqa: E731
        return {"{bad_rows}": join(self.at_fault), "{other_samples}": join(others[: len(self.at_fault)])}

    def _is_finite(self, capture: Capture) -> bool:
        return rerun(replace(self.setting(), capture=capture)).finite

    def proved(self) -> str | None:
        """The cause that is proved, None where none is."""
        try:
            return next((one.cause for one in self.incident().causes if one.proved), None)
        except ImportError:  # nothing beside torch is installed here
            return None


def is_finite_at(setting: Setting) -> bool | None:
    """Is the step finite as `setting` has it? None where it cannot be run again. One extra pass."""
    try:
        return rerun(setting).sound if why_not_runnable(setting) is None else None
    except Exception:
        return None
    finally:
        _empty_cache(setting.model)


def _empty_cache(model: nn.Module | None) -> None:
    """Give what the replay left in the allocator back, as an inference engine on the same card may need it."""
    device = next((p.device for p in model.parameters()), None) if model is not None else None
    if device is not None and device.type == "cuda":
        torch.cuda.empty_cache()


def _groups(optimizer: Any) -> list[list[Tensor]]:
    return [list(group["params"]) for group in getattr(optimizer, "param_groups", None) or []]


def _same_bits(seen: tuple[float, ...], again: tuple[float, ...]) -> bool:
    return len(seen) == len(again) and all(a == b or (a != a and b != b) for a, b in zip(seen, again, strict=True))
