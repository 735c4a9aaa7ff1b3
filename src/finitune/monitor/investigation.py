"""A bad step investigated while its weights, batch and random numbers are still there: locate, weigh, experiment.

Writes what it finds into the recording; what it concludes is diagnosis read back from the same facts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from finitune.chapter import Experiment
from finitune.diagnosis.ranking import experiments_of, proof_of
from finitune.diagnosis.recorded import incident_of
from finitune.facts import NEVER_TRAINED, Batching, Facts
from finitune.facts_json import facts_as_json, facts_from_json
from finitune.finding import Incident, Origin, as_json
from finitune.monitor.probes.live_facts import batch_facts
from finitune.monitor.probes.names import dtype_name
from finitune.monitor.probes.ranks import is_spread
from finitune.monitor.replay.arms import arm, input_embedding
from finitune.monitor.replay.capture import Call, Capture
from finitune.monitor.replay.capture_files import save_capture
from finitune.monitor.replay.locate import locate
from finitune.monitor.replay.padding import padding_of
from finitune.monitor.replay.rerun import Outcome, Setting, rerun, silences_hooks, trainable, why_not_runnable
from finitune.naming import tower_of
from finitune.recording import Recorder
from finitune.series import Signals, lowest_level

MAX_EXPERIMENTS = 8
DIVERGED = 4.0
"""A loss this many times the lowest of the run is no sound step, finite or not."""
BEARABLE_SCALE = 2.0**10
"""A loss that is bad by itself is examined at a loss scale that a sound float16 run bears; a scale that has yet to
settle would spoil the gradients of an arm that cures."""
CONTENDERS = 2
"""How many leading causes are put to the test."""


@dataclass(slots=True, kw_only=True)
class Investigation:
    """One incident under investigation. `passes` counts extra forward-backward runs up to the origin."""

    recorder: Recorder
    model: nn.Module
    optimizer: Any
    capture: Capture
    scale: float
    event: dict[str, Any]
    run_facts: Facts
    signals: Signals
    origin: Origin | None = None
    layers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    repeats: bool | None = None
    bit_for_bit: bool = False
    passes: int = 0
    why_not: str | None = None
    inside: torch.dtype | None = None
    following: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """The events of this incident after the first, as the recording has them."""

    def setting(self) -> Setting:
        return Setting(model=self.model, optimizer=self.optimizer, capture=self.capture, scale=self.scale)

    def find_origin(self, observed: Outcome | None) -> None:
        """Run the step once more under watch, and see whether it repeats."""
        self.why_not = why_not_runnable(self.setting())
        if self.why_not is not None:
            return
        try:
            located = locate(self.setting())
        except Exception as error:  # out of memory, a model that cannot be called twice: training goes on
            self.why_not = f"the step could not be run again: {type(error).__name__}: {str(error)[:200]}"
            return
        self.passes += 1
        self.origin = located.origin
        self.inside = located.inside
        self.layers = [as_json(layer) for layer in located.layers]
        self.repeats = not located.outcome.sound
        if self.repeats and self.origin is None:
            self.why_not = "no operator made it out of finite numbers; it came in with the loop's own code"
        if not self.repeats and silences_hooks(self.model):
            self.repeats = None
            self.why_not = "hooks on accumulated gradients are not run again, and one of them may have made it"
        bad_loss = observed is not None and not all(map(math.isfinite, observed.losses))
        constant = any(micro.objective and micro.objective.constant for micro in self.capture.micro_steps)
        if bad_loss and constant and not self.repeats:
            self.repeats, self.why_not = None, "a term of the loss without a graph is not finite"
        self.bit_for_bit = observed is not None and _same_bits(observed.losses, located.outcome.losses)

    def blame_optimizer(self, name: str, parameter: nn.Parameter) -> None:
        """The origin is the optimizer's own arithmetic, seen at `parameter`."""
        dtype = dtype_name(parameter.dtype)
        step = f"{type(self.optimizer).__name__}.step"
        module = name.rpartition(".")[0]
        self.origin = Origin(module=module, op=step, phase="optimizer", dtype=dtype, values="nan or inf", tensor=name)

    def record(self) -> None:
        """Write the incident with the facts of its batch, then the origin."""
        self.event["facts"] = facts_as_json(self._batch_facts())
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
        )

    def _save_capture(self) -> dict[str, Any]:
        """Path of the capture, relative to the recording, and whether another process can run it again; a disk that
        is full costs the capture alone.
        """
        try:
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

    def incident(self) -> Incident:
        """The incident as `finitune diagnose` will read it from the recording."""
        return incident_of(self.event, self.following, self.run_facts, self.signals, self.recorder.directory)

    @property
    def is_spread(self) -> bool:
        """The model is spread over ranks, so that every pass is theirs together."""
        return is_spread(trainable(self.model))

    def prove(self, *, contenders: int = CONTENDERS, most: int = MAX_EXPERIMENTS) -> None:
        """Put the leading causes to the test until one is proved, with `most` experiments in all.

        Not on a model that is spread over ranks: each would have to run the experiments of the one that found the
        origin, and an arm that exchanges weights does not reach the shards.
        """
        if self.capture.runnable is None and not self.is_spread:
            for contender in self.incident().causes[:contenders]:
                if len(self.arms()) >= most:
                    break
                for experiment in experiments_of(contender.cause):
                    self._try(contender.cause, experiment)
                if proof_of([event for event in self.arms() if event["cause"] == contender.cause]):
                    break

    def _try(self, cause: str, experiment: Experiment) -> None:
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

        None where the arm does not apply to this step.
        """
        try:
            function, arguments = arm(spelling)
            setting = self.setting()
            if self.event["symptom"] == "nonfinite-loss" and setting.scale > BEARABLE_SCALE:
                setting.run_scale = BEARABLE_SCALE
            outcome = rerun(setting, function(setting, *arguments))
        except Exception:  # an arm that the model or the batch does not support proves nothing
            return None
        loss = sum(outcome.losses) / (setting.run_scale or setting.scale)
        lowest = lowest_level(self.signals["loss"].values)
        if outcome.sound and lowest is not None and loss > DIVERGED * lowest:
            return "diverged"
        return "finite" if outcome.sound else "non-finite"

    def _spellings(self, experiment: Experiment) -> Iterator[str]:
        """The experiment's arm with its placeholders filled; nothing where one of them has no value here."""
        text = experiment.arm
        for placeholder, value in self._placeholders().items():
            if placeholder in text:
                if value is None:
                    return
                text = text.replace(placeholder, value)
        yield text

    def _placeholders(self) -> Mapping[str, str | None]:
        module = self.origin.module if self.origin else None
        facts = facts_from_json(self.event["facts"])
        short, others = _short_and_other_rows(facts)
        return {
            "{origin}": module or None,
            "{sibling}": _sibling(self.model, module) if module else None,
            "{tower}": tower_of(module) if module else None,
            "{short_rows}": short,
            "{other_rows}": others,
            "{tensor}": _odd_tensor(self.origin, facts),
            "{other_tensor}": _other_tensor(self.model, _odd_tensor(self.origin, facts)),
        }

    def _batch_facts(self) -> Facts:
        calls = [call for micro in self.capture.micro_steps for call in micro.calls]
        call = next((c for c in calls if c.token_ids() is not None), calls[0] if calls else None)
        ids = call.token_ids() if call else None
        labels = call.kwargs.get("labels") if call else None
        with torch.no_grad():
            targets = [t for m in self.capture.micro_steps if m.objective for t in m.objective.targets]
            facts = batch_facts(self.model, input_embedding(self.model), ids, labels, targets)
            return replace(facts, batching=_batching(call)) if ids is not None else facts


def is_sound(setting: Setting) -> bool | None:
    """Is the step finite as `setting` has it? None where it cannot be run again. One extra pass."""
    try:
        return rerun(setting).sound if why_not_runnable(setting) is None else None
    except Exception:
        return None


def _batching(call: Call | None) -> Batching | None:
    """How the rows of the captured batch were filled up; None where they were not."""
    ids = call.token_ids() if call else None
    padding = None if call is None or ids is None else padding_of(ids, call.kwargs.get("attention_mask"))
    return padding and Batching(
        padding_side=padding.side,
        pad_id=padding.token,
        padded_rows=padding.rows,
        pads_attended=padding.attended,
        source="the captured batch",
    )


def _same_bits(seen: tuple[float, ...], again: tuple[float, ...]) -> bool:
    return len(seen) == len(again) and all(a == b or (a != a and b != b) for a, b in zip(seen, again, strict=True))


def _short_and_other_rows(facts: Facts) -> tuple[str | None, str | None]:
    """Ids of the batch's rows that are far shorter than usual, and as many of its ordinary ones."""
    rows = facts.rows
    if rows is None or not rows.median_rms > 0:
        return None, None
    short = rows.ids[rows.rms <= NEVER_TRAINED * rows.median_rms][:64]
    others = rows.ids[rows.rms > 0.1 * rows.median_rms][: len(short)]
    join = lambda ids: ",".join(map(str, ids.tolist())) or None  # noqa: E731
    return join(short), join(others)


def _sibling(model: nn.Module, module: str) -> str | None:
    """A module of the same kind elsewhere: the same path with another layer number."""
    parts = module.split(".")
    for place, part in enumerate(parts):
        if not part.isdigit():
            continue
        for other in (int(part) - 1, int(part) + 1):
            path = ".".join([*parts[:place], str(other), *parts[place + 1 :]])
            try:
                if other >= 0 and type(model.get_submodule(path)) is type(model.get_submodule(module)):
                    return path
            except AttributeError:
                continue
    return None


def _odd_tensor(origin: Origin | None, facts: Facts) -> str | None:
    """The tensor that is itself the origin, else the one whose peak stands out most."""
    if origin is not None and origin.phase == "parameter":
        return origin.tensor
    tensors = facts.weights.tensors if facts.weights else ()
    return next((scan.name for scan in tensors), None)


def _other_tensor(model: nn.Module, name: str | None) -> str | None:
    """Another parameter, of the same shape where there is one."""
    named = dict(model.named_parameters())
    if name not in named:
        return None
    others = [other for other in named if other != name]
    return next((other for other in others if named[other].shape == named[name].shape), next(iter(others), None))
