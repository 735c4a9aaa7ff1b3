"""A case that somebody tells (settings, hardware, log lines, words) -> a diagnosis; nothing was measured.

What is said becomes observations (`sources.statements`, `sources.circumstances`); every chapter says in its table
`tells` what they weigh, and `check` what it would have foreseen. The sum of bits is turned into a confidence by a scale
that was fitted on public incidents (`make bench-diagnose` prints how far it can be trusted).
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from finitune.diagnosis.advice import useless
from finitune.diagnosis.logged.verdict import seen_in, silence, trials
from finitune.diagnosis.next_question import UNLISTED, next_check
from finitune.diagnosis.ranking import SHOWN, rank
from finitune.facts import Facts, Optimizer, Precision, Training
from finitune.finding import Diagnosis, Incident, NotChecked, RankedCause, UnreadableInput
from finitune.sources import logs
from finitune.sources.cases import case as case_facts
from finitune.sources.cases import circumstances, statements
from finitune.sources.cases.trials import Trial, in_text
from finitune.sources.logs import LogReading
from finitune.sources.text import json_object_of

LONGEST_WORD = 1000
"""So much of a setting is searched for what was tried."""
KEYS = ("framework", "model", "hardware", "title", "log", "config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """From bits to confidence: the posterior with an exponent, and the range into which the first share is drawn.

    Evidence that is told is neither independent nor complete, so small shares are too small and large ones too large.
    """

    sharpness: float
    lowest: float
    highest: float


FITTED = Scale(sharpness=1.1, lowest=0.2, highest=0.95)
"""Fitted on the 55 public incidents that were kept unread; `make bench-diagnose` cross-validates it."""


def diagnose_case(case: str | Path | Mapping[str, Any]) -> Diagnosis:
    """The ranked causes of one case: a file (JSON) or a mapping, with the keys of `KEYS`, all optional.

    Raises UnreadableInput for a file that is no JSON object, or one of something else.
    """
    told = case if isinstance(case, Mapping) else _case_in(Path(case))
    reading = _log(told)
    inputs = inputs_of_case(told, reading)
    observed: Mapping[str, str] = inputs["observations"]
    ranked, unlisted = with_shares(rank(inputs), FITTED)
    spoken_for = [cause for cause in ranked if any(term.bits > 0 for term in cause.evidence)]
    shown = ranked[:SHOWN] if spoken_for else []
    absent = [NotChecked(input=key, why="not in the case") for key in KEYS if not told.get(key)]
    event: Mapping[str, Any] = inputs.get("incident", {})
    symptom = event.get("symptom") or symptom_of(observed)
    incident = Incident(
        step=None, rank=0, symptom=symptom, reproducible=None, origin=None, causes=shown, action="none",
        message=event.get("text") or f"{symptom}, as told; {len(observed)} observations",
        unlisted=unlisted if shown else None,
        next_check=next_check(ranked, observed, inputs),
        source="case",
        does_not_help=useless(_trials(told, reading, inputs), observed, shown[0].cause) if shown else (),
    )  # fmt: skip
    return Diagnosis(incidents=[incident], not_checked=absent)


def inputs_of_case(case: Mapping[str, Any], reading: LogReading | None = None) -> dict[str, Any]:
    """What chapters may read of a case: what was told, and its log as a log is read."""
    reading = reading or _log(case)
    facts = _over(case_facts.read(case), reading.facts)
    seen = seen_in(reading, facts)
    unread: Mapping[str, Any] = (
        case if not seen else {**case, "log": list[Any]()}
    )  # what a log shows is told once, by its signs
    observed = circumstances.read(facts, unread) | statements.read(case)
    if any(name.startswith("computes-") for name in observed):
        observed.pop("speaks-of-float16", None)  # what the settings say counts once
    if case.get("config") and "deepspeed" not in observed:
        observed |= silence(reading, facts)
    if not seen:
        return {**facts.by_name(), "observations": observed}
    return seen[-1].inputs(facts, observed | seen[-1].observations(facts))


def _case_in(path: Path) -> Mapping[str, Any]:
    told = json_object_of(path)
    if told and not told.keys() & set(KEYS):
        raise UnreadableInput(f"{path}: none of the keys of a case (expected some of {', '.join(KEYS)})")
    return told


def _log(case: Mapping[str, Any]) -> LogReading:
    return logs.read_lines(_lines(case), "the log")


def _lines(case: Mapping[str, Any]) -> Iterator[str]:
    log = case.get("log")
    yield from map(str, cast("list[Any]", log)) if isinstance(log, list) else [str(log or "")]


def _over(told: Facts, printed: Facts) -> Facts:
    """What was told, group by group, and what the log prints where a group was only opened."""
    silent = {name: None for name, group in told.by_name().items() if group in (Precision(), Optimizer(), Training())}
    return dataclasses.replace(told, **silent).over(printed).over(told)


def with_shares(ranked: Sequence[RankedCause], scale: Scale) -> tuple[list[RankedCause], float]:
    """The same with `confidence`, and the share of what is not in the book: together they are 1."""
    bits = [*(one.bits for one in ranked), math.log2(UNLISTED)]
    weights = [2.0 ** (scale.sharpness * (one - max(bits))) for one in bits]
    share, others = weights[0] / sum(weights), sum(weights[1:])
    first = scale.lowest + (scale.highest - scale.lowest) * share
    # of what the first leaves, each has its part of the posterior
    shares = [first, *((1 - first) * weight / max(others, sys.float_info.min) for weight in weights[1:])]
    return [dataclasses.replace(one, confidence=said) for one, said in zip(ranked, shares, strict=False)], shares[-1]


def symptom_of(observed: Mapping[str, str]) -> str:
    """The chapter of `symptoms/` that fits what was told, or `reported`."""
    if {"scale-at-minimum", "scale-zero"} & observed.keys():
        return "loss-scale-collapse"
    if {"loss-not-finite", "hidden-loss", "first-finite-then-nan"} & observed.keys():
        return "nonfinite-loss"
    if "gradient-nan" in observed:
        return "nonfinite-gradient"
    return "divergence" if "climbed" in observed else "reported"


def _trials(case: Mapping[str, Any], reading: LogReading, inputs: Mapping[str, Any]) -> Iterator[Trial]:
    """What was tried: as the log shows it, as the settings say it, and as any other word of the case tells it."""
    facts = Facts(**{name: inputs[name] for name in Facts().by_name()})
    seen = seen_in(reading, facts)
    yield from trials(seen[-1] if seen else None, reading, facts)
    config = case.get("config")
    settings = cast("Mapping[str, Any]", config).items() if isinstance(config, Mapping) else ()
    for key, value in (*settings, ("title", case.get("title"))):
        yield from in_text(f"{key}: {value}"[:LONGEST_WORD], "the case")
