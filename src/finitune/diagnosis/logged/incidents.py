"""After a run that nobody watched: what its logs show, what they leave open, and the check that would tell.

What is observed in the logs is weighed by the chapters, as are facts from the log, the configuration, the model and the
data. Every piece of evidence names its line; `next_question` has the check that separates what is left.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from finitune.chapter import causes, tells_of
from finitune.diagnosis.advice import useless
from finitune.diagnosis.logged.failed_attempts import FailedAttempt, failed_attempts, message_observations
from finitune.diagnosis.logged.wrong_model import unseen, without_gradient
from finitune.diagnosis.next_question import next_check
from finitune.diagnosis.ranking import SHOWN, rank
from finitune.facts import Facts
from finitune.finding import Diagnosis, Incident, NotChecked, RankedCause, UnreadableInput
from finitune.observations import Observation, Observed, observed_as
from finitune.sources import logs
from finitune.sources.cases.workarounds import in_facts
from finitune.sources.gather import Config, gather
from finitune.sources.logs import LogReading
from finitune.sources.logs.messages import SYMPTOMS
from finitune.sources.result import Track, untracked

PRINTED_BY_DEEPSPEED = ("deepspeed", "overflow", "zero-stage", "overlap", "scale-at-minimum")
ORDINARY = 2
ABOUT_THE_DEVICE = ("ecc-error", "illegal-access", "cudnn-error", "device-side-assert")
NO_TENSORS = "a log holds no tensors; finitune run -- COMMAND finds the first bad value"


def diagnose_logs(
    *files: str | Path,
    configs: Sequence[Config] = (),
    model: str | Path | None = None,
    data: str | Path | None = None,
    gpu: str | None = None,
    requirements: str | Path | None = None,
    track: Track = untracked,
) -> Diagnosis:
    """Why the run failed whose logs these are, with what is known of it besides; `track` shows how far the reading is.

    Raises UnreadableInput for a file that cannot be read or that says nothing about training.
    """
    reading = logs.read(*files, track=track)
    if not reading.attempts and not message_observations(reading):
        named = ", ".join(str(file) for file in files)
        raise UnreadableInput(f"{named}: no line has a loss, a step or a known error (expected the log of a training)")
    facts, missing = reading.facts, list[NotChecked]()
    if configs or model or data or gpu or requirements:
        inputs = {"model": model, "data": data, "gpu": gpu, "requirements": requirements, "track": track}
        gathered = gather(*configs, **inputs, here=False)
        known = gathered.facts
        if not requirements:  # what is installed here says nothing of a run that may have been elsewhere
            known = dataclasses.replace(known, versions=None)
        facts, missing = known.over(reading.facts), list(gathered.not_checked)
    return diagnosis_of(reading, facts, missing, configured=bool(configs))


def diagnosis_of(
    reading: LogReading, facts: Facts, not_checked: Sequence[NotChecked] = (), *, configured: bool = False
) -> Diagnosis:
    """One incident for each attempt that went wrong, and for an error that no number announced.

    `configured`: the configuration of the run is among the facts, so that its silence says something.
    """
    silent = silence(reading, facts) if configured else {}
    missing = [*not_checked, *(NotChecked(input="log", why=why) for why in reading.not_checked)]
    incidents = [_incident(failed, reading, facts, silent) for failed in failed_attempts(reading)]
    if not incidents:
        incidents, not_seen = unseen(facts)
        missing += [*without_gradient(reading.attempts), *not_seen]
    own = sum(attempt.counted for attempt in reading.attempts if not attempt.run)
    steps = max([own, *(attempt.counted for attempt in reading.attempts if attempt.run)])  # runs go side by side
    return Diagnosis(incidents=incidents, not_checked=missing, steps=steps or None)


def silence(reading: LogReading, facts: Facts) -> dict[str, Observation]:
    """What it says that neither the log nor a configuration that is known speaks of something."""
    silent: dict[str, Observation] = {}
    if facts.parallel is None and not any(one.kind in PRINTED_BY_DEEPSPEED for one in reading.messages):
        silent |= observed_as("no-word-of-deepspeed", "neither the log nor the configuration speaks of DeepSpeed")
    if facts.parallel and facts.parallel.zero_stage in (1, 2) and facts.parallel.overlap_comm is None:
        silent |= observed_as("overlap-not-asked", "overlap_comm is not asked for, and ZeRO-1 and ZeRO-2 leave it off")
    if facts.quantization is None:
        text = "neither the log nor the configuration speaks of quantised weights"
        silent |= observed_as("no-word-of-quantisation", text)
    return silent


def frames(reading: LogReading, facts: Facts) -> set[str]:
    """What was seen of the frames that rare causes want: DeepSpeed, a device that complains, fused kernels, experts."""
    printed = {one.kind for one in reading.messages}
    shown = {
        "deepspeed": facts.parallel is not None or bool(printed & set(PRINTED_BY_DEEPSPEED)),
        "device": bool(printed & set(ABOUT_THE_DEVICE)),
        "fused attention": facts.attention is not None or "cudnn-attention" in printed,
        "experts": bool(facts.model and facts.model.experts) or "grouped-gemm" in printed,
    }
    return {name for name, seen in shown.items() if seen}


def tried(failed: FailedAttempt | None, reading: LogReading, facts: Facts) -> Iterator[Observation]:
    """The workarounds that the numbers of the log, its messages and the settings show."""
    for name, tried_name in (
        ("tiny-learning-rate", "tried-tiny-learning-rate"), ("lower-learning-rate-fails", "tried-lower-learning-rate"),
    ):  # fmt: skip
        if failed and name in failed.observed:
            yield dataclasses.replace(failed.observed[name], name=tried_name)
    for one in reading.messages:
        if one.kind.startswith("tried-"):
            yield Observation(name=one.kind, text=one.text, place=one.place)
    yield from in_facts(facts)


def ranked_causes(failed: FailedAttempt, reading: LogReading, inputs: Mapping[str, Any]) -> list[RankedCause]:
    """Every cause, most likely first; where an error text is all there is, those that explain it."""
    ranked = rank(inputs)
    printed = {one.name for one in message_observations(reading)}
    if not set(failed.observed) <= printed:
        return ranked
    explained = [one for one in ranked if _explains(one.cause, failed.observed)]
    return explained or ([] if failed.symptom == "crash" else ranked)


def _without_frame(seen: Collection[str]) -> set[str]:
    """Rare causes of whose frame nothing was seen."""
    named = {name: getattr(chapter.module, "frame", None) for name, chapter in causes().items()}
    return {name for name, frame in named.items() if frame is not None and frame not in seen}


def _may_be_deepspeed(failed: FailedAttempt) -> bool:
    """Rows of a Trainer do not name DeepSpeed, which may run below it; other frames print something.

    ZeRO writes -1 for a gradient norm that is not finite, in every release: a row with `nan` did not pass through it.
    """
    norms = failed.attempt.signals.get("grad_norm")
    printed = norms is not None and not np.isfinite(norms.values).all()
    return "sentinel-norm" in failed.observed or ("hidden-loss" in failed.observed and not printed)


def frames_first(ranked: Sequence[RankedCause], seen: Collection[str]) -> list[RankedCause]:
    """The two first causes are ordinary ones, unless the frame of a rare one was seen."""
    rare = _without_frame(seen)
    ordinary = [one for one in ranked if one.proved or one.cause not in rare][:ORDINARY]
    rest = [one for one in ranked if one not in ordinary]
    if not ordinary or ordinary[0].proved or ordinary == list(ranked[:ORDINARY]):
        return list(ranked)
    return [*(dataclasses.replace(one, strength="guess") for one in ordinary), *rest]


def _explains(cause: str, observed: Observed) -> bool:
    """Does the chapter name one of the error texts?"""
    return any(bits > 0 and name in SYMPTOMS and name in observed for name, bits, _ in tells_of(causes()[cause]))


def _incident(failed: FailedAttempt, reading: LogReading, facts: Facts, silent: Observed) -> Incident:
    inputs = failed.inputs(facts, silent)
    seen = frames(reading, facts)
    rare = _without_frame({*seen, "deepspeed"} if _may_be_deepspeed(failed) else seen)
    every = frames_first(ranked_causes(failed, reading, inputs), seen)
    ranked = [one for one in every if one.proved or one.cause not in rare] or every
    shown = [cause for cause in ranked if any(term.bits > 0 for term in cause.evidence)][:SHOWN]
    observed: Observed = inputs["observations"]
    incident = Incident(
        step=failed.step,
        rank=0,
        symptom=failed.symptom,
        reproducible=None,
        origin=None,
        causes=shown,
        action="none",
        not_located=NO_TENSORS,
        last_good=failed.last_good,
        last_step=max(failed.attempt.last_step, failed.step),
        message=f"{failed.text} ({failed.place})",
        seen=[one.words for one in failed.observed.values() if one.text != failed.text and one.name != failed.symptom],
        next_check=next_check(every, observed, facts.by_name()) if every else "",
        source="log",
        does_not_help=useless(tried(failed, reading, facts), observed, shown[0].cause) if shown else (),
    )
    return incident if failed.attempt.numbered or not failed.attempt.traces else _in_rows(incident)


_STEP = re.compile(r"\bstep(s?) (?=\d)")


def _in_rows(incident: Incident) -> Incident:
    """The same of a log that says no steps: what was counted are its rows."""
    causes = [
        dataclasses.replace(
            cause,
            evidence=[dataclasses.replace(term, text=_STEP.sub(r"row\1 ", term.text)) for term in cause.evidence],
        )
        for cause in incident.causes
    ]
    return dataclasses.replace(
        incident, unit="row", message=_STEP.sub(r"row\1 ", incident.message), causes=causes,
        seen=[_STEP.sub(r"row\1 ", text) for text in incident.seen],
    )  # fmt: skip
