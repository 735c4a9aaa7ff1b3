"""After a run: gather what its recording holds, ask every cause, and rank them with every term shown.

Nothing is run here. Replay wrote what it found into the recording, so the same diagnosis comes out while the run
goes on, on another machine, and without torch.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from finitune.chapter import Chapter, Experiment, ask, causes, proposed, tells_of
from finitune.diagnosis.next_question import Question, next_check
from finitune.facts import Facts
from finitune.facts_json import facts_from_json
from finitune.finding import Diagnosis, Evidence, Finding, Incident, NotChecked, Origin, RankedCause, Severity, number
from finitune.recording import Recording
from finitune.series import Signals
from finitune.sources.cases.circumstances import of_facts

CURE_SEEN_BITS = 5.0
"""An arm that removes the cause made the step sound, as predicted."""
PLACEBO_SEEN_BITS = 1.0
PREDICTION_FAILED_BITS = -7.0
"""Experiments outweigh circumstances: one failed prediction undoes several hints."""
SHOWN = 3
SHOWS = {
    "nonfinite-loss": ("loss-not-finite",), "nonfinite-gradient": ("gradient-first", "gradient-nan"),
    "loss-scale-collapse": ("scale-fell",), "divergence": ("diverged",), "nonfinite-update": ("second-step",),
}  # fmt: skip
"""What the symptoms of a recording are called where they are told."""
REPEATABLE = ("nonfinite-loss", "nonfinite-gradient", "loss-scale-collapse")
"""Symptoms that one forward and backward show again, in another process too."""
EVEN = 2.0
"""Incidents that every cause is thought to have had besides those counted: public reports are few and selected."""
FORESEEN_BITS: Mapping[Severity, float] = {"error": 4.0, "warning": 3.0, "info": 1.0}
"""What `check` would have said, of a log or a case. Of the scales tried on the incidents that were read while the rules
were written, 4/3/1 and 5/3.5/1.5 rank best; halved ones lose a few first places."""


def diagnose(run_dir: str | Path) -> Diagnosis:
    """Every incident in the recording at `run_dir`, each with its ranked causes.

    Raises FileNotFoundError when there is no recording.
    """
    recording = Recording.load(run_dir)
    incidents = [_incident(recording, event) for event in recording.events("incident")]
    return Diagnosis(
        incidents=incidents,
        not_checked=[NotChecked(input="recording", why=problem) for problem in recording.problems],
    )


def rank(
    inputs: Mapping[str, Any],
    experiments: Sequence[Mapping[str, Any]] = (),
    prior: Mapping[str, Evidence] | None = None,
) -> list[RankedCause]:
    """Every cause of the book, most likely first.

    `inputs` holds what chapters may name in `weigh`, `experiments` the recorded `arm` events of the incident. Of a run
    that nobody watched `observations` holds what its log shows and what was told: slug -> the words it was read from.
    """
    prior = prior or occurrences(counts())
    ranked = [
        _weighed(chapter, inputs, [e for e in experiments if e.get("cause") == name], prior[name])
        for name, chapter in causes().items()
    ]
    return sorted(ranked, key=lambda cause: (not cause.proved, -cause.bits, cause.cause))


def inputs_of(
    facts: Facts, event: Mapping[str, Any], origin: Mapping[str, Any] | None, signals: Signals
) -> dict[str, Any]:
    """What `weigh` may read about one incident, under the names that chapters use."""
    step = event["step"]
    before = {name: series.until(step) for name, series in signals.items() if series}
    return {
        **facts.by_name(),
        **before,
        "signals": before,
        "symptoms": {event.get("symptom")},
        "incident": event,
        "origin": _origin(origin.get("origin")) if origin else None,
        "repeats": origin.get("repeats") if origin else None,
    }


def _incident(recording: Recording, event: Mapping[str, Any]) -> Incident:
    signals = next(rank.signals for rank in recording.ranks if rank.rank == event["rank"])
    return incident_of(event, of_same_incident(recording, event), recording.facts, signals, recording.directory)


def of_same_incident(recording: Recording, event: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What was recorded of the incident that `event` opened, after it."""
    return [
        e for e in recording.events("origin", "arm", "action", "stop")
        if e.get("incident") == event.get("id") and e["rank"] == event["rank"]
    ]  # fmt: skip


def incident_of(
    event: Mapping[str, Any],
    following: Sequence[Mapping[str, Any]],
    run_facts: Facts,
    signals: Signals,
    run_dir: Path,
) -> Incident:
    """The incident that `event` opened, from the events that belong to it; live and from a recording alike."""
    origins = [e for e in following if e["event"] == "origin"]  # a later one was found when the step was run again
    origin = next((e for e in reversed(origins) if e.get("origin")), origins[0] if origins else None)
    own = event.get("facts")
    facts = (facts_from_json(own) if isinstance(own, Mapping) else Facts()).over(run_facts)  # pyright: ignore[reportUnknownArgumentType]
    inputs = inputs_of(facts, event, origin, signals)
    arms = [e for e in following if e["event"] == "arm"]
    ranked = rank(inputs, arms)
    shown = [cause for cause in ranked if cause.proved or cause.bits > 0][:SHOWN]
    stopped = any(e["event"] == "stop" for e in following)
    actions = [e for e in following if e["event"] == "action"]
    return Incident(
        step=event["step"],
        rank=event.get("rank", 0),
        symptom=str(event.get("symptom")),
        reproducible=inputs["repeats"],
        bit_for_bit=origin.get("bit_for_bit") if origin else None,
        origin=inputs["origin"],
        causes=shown,
        action="stopped" if stopped else event.get("action", "none"),
        not_located=origin.get("why_not") if origin else "the recording ends before the step was run again",
        last_good=event.get("last_good"),
        last_step=actions[-1]["step"] if actions else event["step"],
        message=str(event.get("text", "")),
        next_check=next_check(
            ranked,
            {*of_facts(facts), *SHOWS.get(str(event.get("symptom")), ())},
            facts.by_name(),
            _experiments_left(shown, event, origin, arms, run_dir),
        ),
    )


def _experiments_left(
    shown: Sequence[RankedCause],
    event: Mapping[str, Any],
    origin: Mapping[str, Any] | None,
    ran: Sequence[Mapping[str, Any]],
    run_dir: Path,
) -> list[Question]:
    """Experiments of the leading causes that were not put to the test, where there is a step to run again."""
    repeats = event.get("symptom") in REPEATABLE and (origin or {}).get("repeats") is not False
    if not (repeats and event.get("runs_elsewhere")):
        return []
    tried = {e.get("cause") for e in ran}  # of these the others do not apply to the step
    arms = [e.arm.partition("=")[0] for c in shown if c.cause not in tried for e in experiments_of(c.cause)]
    how = f"finitune diagnose {shlex.quote(str(run_dir))} --prove"
    return [
        Question(name=arm, ask=f"run the captured step again under {arm}", how=how, answers=((f"arm:{arm}",),))
        for arm in dict.fromkeys(arms)
    ]


def _weighed(
    chapter: Chapter, inputs: Mapping[str, Any], experiments: Sequence[Mapping[str, Any]], prior: Evidence
) -> RankedCause:
    told = inputs.get("observations")
    weigh = chapter.function("weigh")
    answer = ask(weigh, inputs) if weigh else None
    warned = foreseen(chapter, inputs) if told is not None else None
    counted = sum(term.bits for term in answer.results if term.bits > 0) if answer else 0.0
    said = [*told_evidence(chapter, told or {}), *([expected(warned, counted)] if warned else [])]
    terms = [prior, *said, *(answer.results if answer else []), *map(_experiment_evidence, experiments)]
    facts = [inputs[f.name] for f in dataclasses.fields(Facts) if inputs.get(f.name) is not None]
    asked = bool(answer and not answer.missing and not answer.broken)
    if warned and warned.remedy:
        remedies = [warned.remedy]
    else:
        remedies = proposed(chapter, inputs) if asked or said or not facts else []
    return RankedCause(
        cause=chapter.name,
        confidence=None,
        proved=asked and bool(proof_of(experiments)),
        # A cause whose inputs are absent was not asked: it keeps its prior alone and is not shown as likely.
        bits=sum(term.bits for term in terms),
        evidence=terms,
        remedies=remedies,
        not_asked=(answer.missing or ((answer.broken,) if answer.broken else ())) if answer else (),
        proof=proof_of(experiments) if asked else (),
    )


def told_evidence(chapter: Chapter, told: Mapping[str, str]) -> list[Evidence]:
    """What the chapter's table `tells` makes of the observations."""
    return [
        Evidence(text=f"{told[seen[0]]}: {why}", bits=bits)
        for row, bits, why in tells_of(chapter)
        if (seen := [slug for slug in row if slug in told])
    ]


def foreseen(chapter: Chapter, inputs: Mapping[str, Any]) -> Finding | None:
    """The gravest finding of the chapter about these facts."""
    found: list[Finding] = chapter.ask("foresee", inputs).results
    return max(found, key=lambda one: (FORESEEN_BITS[one.severity], one.remedy is not None), default=None)


def expected(finding: Finding, counted: float = 0.0) -> Evidence:
    """The finding as a piece of evidence, for what `weigh` has not `counted` of the same facts."""
    bits = max(0.0, FORESEEN_BITS[finding.severity] - counted)
    return Evidence(text=f"could be foreseen: {finding.message}", bits=bits)


def counts() -> dict[str, int]:
    """Cause -> how many public incidents the book knows of it."""
    return {name: int(getattr(chapter.module, "public_incidents", 0)) for name, chapter in causes().items()}


def occurrences(seen: Mapping[str, float]) -> dict[str, Evidence]:
    """The prior of every cause of the book from how often each was seen."""
    total = sum(seen.values())
    whole = total + EVEN * len(causes())
    return {
        name: Evidence(
            text=f"occurs in {seen.get(name, 0):g} of {total:g} public incidents that the book knows",
            bits=math.log2((seen.get(name, 0) + EVEN) / whole),
        )
        for name in causes()
    }


def proof_of(experiments: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The arm that removes the cause and made the step sound, and the placebo that did not; empty: not proved.

    Of several arms that cured, the one that changes least is the last.
    """
    cured = [e for e in experiments if not e.get("placebo") and e.get("expect") == e.get("result") == "finite"]
    placebos = [e for e in experiments if e.get("placebo")]
    if not cured or not placebos or any(e.get("result") != "non-finite" for e in placebos):
        return ()
    return str(cured[-1].get("arm")), str(placebos[0].get("arm"))


def experiments_of(cause: str) -> list[Experiment]:
    """What the chapter says would decide it."""
    return causes()[cause].declared("experiments")


def _experiment_evidence(event: Mapping[str, Any]) -> Evidence:
    as_predicted = event.get("result") == event.get("expect")
    kind = "placebo" if event.get("placebo") else "experiment"
    bits = PREDICTION_FAILED_BITS if not as_predicted else PLACEBO_SEEN_BITS if event.get("placebo") else CURE_SEEN_BITS
    if as_predicted and event.get("expect") == "non-finite" and not event.get("placebo"):
        bits = PLACEBO_SEEN_BITS
    if not as_predicted and event.get("optional"):
        bits = 0.0
    verb = "as predicted" if as_predicted else f"but {event.get('expect')} was predicted"
    return Evidence(text=f"{kind} {event.get('arm')}: {event.get('result')}, {verb}", bits=bits)


def _origin(data: Any) -> Origin | None:
    if not isinstance(data, Mapping):
        return None
    fields = {f.name for f in dataclasses.fields(Origin)}
    given: dict[str, Any] = {str(k): v for k, v in data.items() if k in fields}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    given["peak"] = number(given.get("peak"))
    try:
        return Origin(**given)
    except TypeError:
        return None
