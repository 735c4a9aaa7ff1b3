"""A case that somebody writes (settings, hardware, log lines, words) -> a diagnosis; nothing was measured.

Everything in it becomes observations: its log is read as any log, its settings as facts, its words by `statements`.
Chapters say in their table `tells` what they weigh, and `check` what it would have foreseen. The sum of bits is turned
into a confidence by a scale that was fitted on public incidents (`make bench-diagnose` prints how far it can be
trusted), but not where words are all there is.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from finitune.chapter import symptoms
from finitune.diagnosis.advice import useless
from finitune.diagnosis.logged.failed_attempts import FailedAttempt, failed_attempts, message_observations
from finitune.diagnosis.logged.incidents import frames, frames_first, ranked_causes, silence, tried
from finitune.diagnosis.next_question import UNLISTED, next_check
from finitune.diagnosis.observed_settings import of_facts, of_names
from finitune.diagnosis.ranking import SHOWN, rank
from finitune.facts import Facts, Optimizer, Precision, Training
from finitune.finding import Diagnosis, Incident, NotChecked, RankedCause, UnreadableInput
from finitune.observations import Observation, Observed
from finitune.sources import logs
from finitune.sources.cases import case as case_facts
from finitune.sources.cases import statements
from finitune.sources.cases.workarounds import in_text
from finitune.sources.logs import LogReading
from finitune.sources.logs.messages import SYMPTOMS
from finitune.sources.text import json_object_of

LONGEST_WORD = 1000
"""So much of a setting is searched for what was tried."""
KEYS = ("framework", "model", "hardware", "title", "log", "config")
IN_WORDS = ("framework", "model", "hardware", "title")
"""A case without any of these is a log, and read as one."""
MEANT = {"scale-zero": "loss-scale-collapse", "climbed": "divergence", "zero-loss": "nonfinite-loss"}
"""What somebody writes -> the symptom that it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """From bits to confidence: the posterior with an exponent, and the range into which the first share is drawn.

    What people write is neither independent nor complete, so small shares are too small and large ones too large.
    """

    sharpness: float
    lowest: float
    highest: float


FITTED = Scale(sharpness=1.4, lowest=0.3, highest=0.9)
"""Fitted on the 55 public incidents that were kept unread; `make bench-diagnose` cross-validates it."""


def diagnose_case(case: str | Path | Mapping[str, Any]) -> Diagnosis:
    """The ranked causes of one case: a file (JSON) or a mapping, with the keys of `KEYS`, all optional.

    Raises UnreadableInput for a file that is no JSON object, or one of something else.
    """
    given = case if isinstance(case, Mapping) else _case_in(Path(case))
    reading = logs.read_lines(_lines(given), "the log")
    failed = next(iter(failed_attempts(reading)[-1:]), None)
    inputs = inputs_of_case(given, reading, failed)
    observed: Observed = inputs["observations"]
    ranked = ranked_causes(failed, reading, inputs) if failed else rank(inputs)
    facts = Facts(**{name: inputs[name] for name in Facts().by_name()})
    if failed and not any(given.get(key) for key in IN_WORDS):
        ranked = frames_first(ranked, frames(reading, facts))
    unlisted = None
    if given.get("config") or any(map(str.strip, _lines(given))):  # words alone are not calibrated
        ranked, unlisted = with_shares(ranked, FITTED)
    else:
        ranked = [dataclasses.replace(one, strength="guess") for one in ranked]
    supported = [cause for cause in ranked if any(term.bits > 0 for term in cause.evidence)]
    shown = ranked[:SHOWN] if supported else []
    event: Mapping[str, Any] = inputs.get("incident", {})
    symptom = event.get("symptom") or symptom_of(observed)
    incident = Incident(
        step=None, rank=0, symptom=symptom, reproducible=None, origin=None, causes=shown, action="none",
        message=event.get("text") or f"{symptom}, as reported; {len(observed)} observations",
        unlisted=unlisted if shown else None,
        next_check=next_check(ranked, observed, inputs),
        source="case",
        does_not_help=useless(_tried(given, failed, reading, facts), observed, shown[0].cause) if shown else (),
    )  # fmt: skip
    absent = [NotChecked(input=key, why="not in the case") for key in KEYS if not given.get(key)]
    return Diagnosis(incidents=[incident], not_checked=absent)


def inputs_of_case(
    case: Mapping[str, Any], reading: LogReading | None = None, failed: FailedAttempt | None = None
) -> dict[str, Any]:
    """What chapters may read of a case: what is written, and its log as a log is read."""
    if reading is None:
        reading = logs.read_lines(_lines(case), "the log")
        failed = next(iter(failed_attempts(reading)[-1:]), None)
    facts = _over(case_facts.read(case), reading.facts)
    observed = {**of_names(case), **statements.read(case), **of_facts(facts)}
    observed |= {one.name: one for one in message_observations(reading)}
    if case.get("config") and "deepspeed" not in observed:
        observed |= silence(reading, facts)
    return (
        failed.inputs(facts, observed) if failed else {**facts.by_name(), **reading.signals, "observations": observed}
    )


def _case_in(path: Path) -> Mapping[str, Any]:
    given = json_object_of(path)
    if given and not given.keys() & set(KEYS):
        raise UnreadableInput(f"{path}: none of the keys of a case (expected some of {', '.join(KEYS)})")
    return given


def _lines(case: Mapping[str, Any]) -> Iterator[str]:
    log = case.get("log")
    yield from map(str, cast("list[Any]", log)) if isinstance(log, list) else [str(log or "")]


def _over(written: Facts, printed: Facts) -> Facts:
    """What was written, group by group, and what the log prints where a group was only opened."""
    silent = {
        name: None for name, group in written.by_name().items() if group in (Precision(), Optimizer(), Training())
    }
    return dataclasses.replace(written, **silent).over(printed).over(written)


def with_shares(ranked: Sequence[RankedCause], scale: Scale) -> tuple[list[RankedCause], float]:
    """The same with `confidence`, and the share of what is not in the book: together they are 1."""
    bits = [*(one.bits for one in ranked), math.log2(UNLISTED)]
    weights = [2.0 ** (scale.sharpness * (one - max(bits))) for one in bits]
    share, others = weights[0] / sum(weights), sum(weights[1:])
    first = scale.lowest * (1 - share) + scale.highest * share
    # of what the first leaves, each has its part of the posterior
    shares = [first, *((1 - first) * weight / max(others, sys.float_info.min) for weight in weights[1:])]
    return [dataclasses.replace(one, confidence=said) for one, said in zip(ranked, shares, strict=False)], shares[-1]


def symptom_of(observed: Observed) -> str:
    """The chapter of `symptoms/` that fits what was written, or `reported`."""
    meant = (SYMPTOMS.get(name) or MEANT.get(name) or name for name in observed)
    return next((name for name in meant if name in symptoms()), "reported")


def _tried(
    case: Mapping[str, Any], failed: FailedAttempt | None, reading: LogReading, facts: Facts
) -> Iterator[Observation]:
    """What was tried: as the log shows it, as the settings say it, and as any other word of the case has it."""
    yield from tried(failed, reading, facts)
    config = case.get("config")
    settings = cast("Mapping[str, Any]", config).items() if isinstance(config, Mapping) else ()
    for key, value in (*settings, ("title", case.get("title"))):
        yield from in_text(f"{key}: {value}"[:LONGEST_WORD], "the case")
