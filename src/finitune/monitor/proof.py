"""`finitune diagnose RUN_DIR --prove`: the captured steps of a recording run again, and their causes put to the test.

What is found is appended to the recording, where every diagnosis reads it. The model is built again from what the
capture says of it; its weights are those kept with the capture, those of the last good step, or those in a directory
that the user names. A step that does not fail again proves nothing.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from finitune.contained import contained
from finitune.diagnosis.ranking import SHOWN
from finitune.diagnosis.recorded import incident_of, of_same_incident
from finitune.facts_json import facts_as_json
from finitune.finding import Incident, UnreadableInput
from finitune.monitor.capture.model_files import build, why_not
from finitune.monitor.capture.model_keys import checked
from finitune.monitor.capture.step_files import load_capture, read_capture
from finitune.monitor.experiments import try_causes
from finitune.monitor.investigation import Investigation
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu
from finitune.monitor.replay.rerun import Outcome
from finitune.recording import Recording, continued
from finitune.reports.sentences import counted
from finitune.series import Signals

MOST_INCIDENTS = 5
"""Each may take as long as a few dozen training steps; the later ones of a run are mostly the same fault."""
MOST_EXPERIMENTS = 24
MAX_FILE = 2**29
"""Bytes of one file of a capture; batches and weights are kept up to half of it."""
NEEDS_MORE = {
    "divergence": "it shows over many steps, and a capture holds one",
    "nonfinite-update": "it needs the optimizer's state, which a capture does not hold",
    "wrong-reduction": "it needs the other ranks",
}
"""Symptoms that one forward and backward do not show again."""


def prove(run_dir: str | Path, *, model: str | Path | None = None) -> list[str]:
    """Run every captured step of the recording again whose cause is not proved; returns what came of each, in words.

    `model`: where the weights are that the recording does not hold. Raises FileNotFoundError without a recording.
    """
    recording = Recording.load(run_dir)
    results: list[str] = []
    tried = 0
    for event in recording.events("incident"):
        story = _Story.of(recording, event)
        if any(cause.proved for cause in story.incident().causes):
            continue
        if tried == MOST_INCIDENTS:
            results.append("later incidents were left alone")
            break
        tried += 1
        try:
            text = _proved(recording, story, Path(model) if model is not None else None)
        except UnreadableInput as error:
            text = f"nothing was run: {error}"
        results.append(f"step {event['step']}: {text}")
    return results or ["nothing to prove: no incident" if not recording.events("incident") else "all is proved already"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Story:
    """One incident as it is recorded."""

    event: dict[str, Any]
    following: list[dict[str, Any]]
    recording: Recording

    @staticmethod
    def of(recording: Recording, event: Mapping[str, Any]) -> _Story:
        following = [dict(e) for e in of_same_incident(recording, event)]
        return _Story(event=dict(event), following=following, recording=recording)

    @property
    def rank(self) -> int:
        return self.event["rank"]

    def incident(self) -> Incident:
        return incident_of(self.event, self.following, self.recording.facts, self.signals(), self.recording.directory)

    def signals(self) -> Signals:
        return next(rank for rank in self.recording.ranks if rank.rank == self.rank).signals_of(self.event)


def _proved(recording: Recording, story: _Story, given: Path | None) -> str:
    """What came of one incident, in words.

    Raises UnreadableInput for what is missing.
    """
    event = story.event
    if event.get("symptom") in NEEDS_MORE:
        return f"a {event['symptom']} is not run again: {NEEDS_MORE[event['symptom']]}. It is proved live or not at all"
    file = _capture_file(recording.directory, event)
    data = read_capture(file)
    described = checked(_completed(data.get("model"), recording), file)
    missing = why_not(described)
    if missing:
        raise UnreadableInput(missing)
    weights = _weights_file(recording.directory, file, data.get("weights"))
    _in_recording(recording.directory, file.with_suffix(".safetensors"), "the tensors of a captured step")
    directory = _directory(recording.directory, described, given, kept=weights is not None)
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # what the libraries say while they load
        warnings.simplefilter("ignore")
        model = build(described, directory, weights)
    stored = load_capture(data, file, model)
    recorder = continued(recording.directory, rank=story.rank, world=recording.world)
    if recorder is None:
        raise UnreadableInput(f"{recording.directory}: the run is still being recorded (expected one that has ended)")
    try:
        inquiry = Investigation(
            recorder=recorder,
            model=model,
            optimizer=None,
            capture=stored.capture,
            scale=stored.scale,
            event=event,
            run_facts=facts_as_json(recording.facts),
            signals={name: series.until(event["step"]) for name, series in story.signals().items()},
            following=story.following,
        )
        with float16_on_cpu() if _device(model) == "cpu" else nullcontext():
            return _tested(inquiry, story.incident(), stored.losses, _whose(weights, directory))
    finally:
        recorder.close()


def _tested(inquiry: Investigation, recorded: Incident, losses: tuple[float | None, ...], whose: str) -> str:
    seen = tuple(math.nan if loss is None else loss for loss in losses)
    inquiry.find_origin(Outcome(losses=seen, norms=torch.zeros(0)))
    again = f"run again on {_device(inquiry.model)} with {whose}"
    if inquiry.repeats is None and not inquiry.passes:
        return f"nothing was run: {inquiry.why_not or 'the step cannot be run again'}"
    if not inquiry.repeats:
        why = f" ({inquiry.why_not})" if inquiry.why_not else ""
        return f"{again}, the step is finite{why}: nothing is proved"
    found, known = inquiry.origin, recorded.origin
    if found and known and (found.module, found.phase) != (known.module, known.phase):
        place = f"{found.module or found.op} ({found.phase})"
        return f"{again}, the step fails first in {place} and not where the run did: nothing is proved"
    if known is None and found is not None:
        inquiry.record_origin()
    inquiry.origin = found or known
    before = len(inquiry.arms())
    try_causes(inquiry, contenders=SHOWN, most=before + MOST_EXPERIMENTS)
    ran = len(inquiry.arms()) - before
    proved = [cause.cause for cause in inquiry.incident().causes if cause.proved]
    bits = ", bit for bit" if inquiry.bit_for_bit else ""
    what = f"prove {proved[0]}" if proved else "prove nothing"
    return f"{again}, the step fails again{bits}; {counted(ran, 'experiment')} {what}"


def _capture_file(run_dir: Path, event: Mapping[str, Any]) -> Path:
    named = event.get("capture")
    if not isinstance(named, str) or named.startswith("not written"):
        raise UnreadableInput(f"{run_dir}: no step was captured ({named or 'the run saw no forward and backward'})")
    return _in_recording(run_dir, run_dir / named, "a captured step")


def _weights_file(run_dir: Path, capture: Path, named: Any) -> Path | None:
    """The weights that were kept with a capture, beside it; None where it kept none."""
    if not named:
        return None
    if not isinstance(named, str) or named != f"{capture.stem}-weights.safetensors":
        raise UnreadableInput(f"{capture}: weights: {str(named)[:80]!r} (expected {capture.stem}-weights.safetensors)")
    return _in_recording(run_dir, capture.with_name(named), "the weights of a captured step")


def _in_recording(run_dir: Path, file: Path, expected: str) -> Path:
    try:
        return contained(run_dir, file, expected=expected, most=MAX_FILE)
    except FileNotFoundError:
        raise UnreadableInput(f"{file}: missing (expected {expected})") from None


def _completed(described: Any, recording: Recording) -> Mapping[str, Any]:
    """What is known of the model; the autocast within its forward is seen where a step was run again live."""
    if not isinstance(described, Mapping):
        raise UnreadableInput(f"{recording.directory}: the captured step says nothing of its model")
    described = cast("Mapping[str, Any]", described)
    if described.get("autocast_inside"):
        return described
    inside = (other.get("autocast_inside") for other in _other_models(recording))
    return {**described, "autocast_inside": next(filter(None, inside), None)}


def _other_models(recording: Recording) -> Iterator[Mapping[str, Any]]:
    for event in recording.events("incident"):
        try:
            model = read_capture(_capture_file(recording.directory, event)).get("model")
        except UnreadableInput:
            continue
        if isinstance(model, Mapping):
            yield cast("Mapping[str, Any]", model)


def _directory(run_dir: Path, described: Mapping[str, Any], given: Path | None, *, kept: bool) -> Path | None:
    """Where the weights are: as the user says, of the last good step, or, where those that were trained are `kept`
    with the capture, where the run took the others from.
    """
    if given is not None:
        if not given.is_dir():
            raise UnreadableInput(f"{given}: no such directory (expected a model)")
        return given
    last_good = run_dir / "last-good"
    if last_good.is_dir():
        if not last_good.resolve().is_relative_to(run_dir.resolve()):
            raise UnreadableInput(f"{last_good}: leads out of {run_dir} (expected the weights of the last good step)")
        for file in last_good.iterdir():
            if not file.is_dir():
                contained(last_good, file, expected="a file of the last good step")
        return last_good
    path = described.get("path")
    return Path(path) if kept and path and (Path(path) / "config.json").is_file() else None


def _whose(weights: Path | None, directory: Path | None) -> str:
    return "the weights of that step" if weights is not None else f"the weights in {directory}"


def _device(model: nn.Module | None) -> str:
    return "cpu" if model is None else next(model.parameters()).device.type
