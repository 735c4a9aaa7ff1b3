"""After a run that nobody watched: what its logs show, what they leave open, and the check that would tell.

Signs are read from the logs (`signs`), each speaks for or against causes (`lookalikes`), and facts from the log, the
configuration, the model and the data are weighed as in every diagnosis. Every piece of evidence names its line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from finitune.cause import causes
from finitune.chapter import ask
from finitune.diagnosis import inputs_of, rank
from finitune.facts import Facts
from finitune.finding import Diagnosis, Evidence, Finding, Incident, NotChecked, RankedCause, UnreadableInput
from finitune.postmortem.lookalikes import FATAL, SPEAKS, next_check
from finitune.postmortem.signs import Sign, Trouble, message_signs, sound_loss, trouble_of
from finitune.sources import Config, gather, logs
from finitune.sources.logs import Attempt, LogReading
from finitune.sources.reading import Track, untracked

SHOWN = 3
FORESEEN_BITS = {"error": 6.0, "warning": 3.0, "info": 0.5}
"""What `finitune check` would have said; its own misses and false alarms were counted in `make bench-check`."""
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
    if not (reading.attempts or any(f"message:{one.kind}" in SPEAKS for one in reading.said)):
        named = ", ".join(str(file) for file in files)
        raise UnreadableInput(
            f"{named}: no line tells a loss, a step or a known error (expected the log of a training)"
        )
    facts, missing = reading.facts, list[NotChecked]()
    if configs or model or data or gpu or requirements:
        gathered = gather(*configs, model=model, data=data, gpu=gpu, requirements=requirements, track=track)
        known = gathered.facts
        if known.versions is not None and not requirements and reading.facts.versions:
            known = dataclasses.replace(known, versions={**known.versions, **reading.facts.versions})
        facts, missing = known.over(reading.facts), list(gathered.not_checked)
    return diagnosis_of(reading, facts, missing)


def diagnosis_of(reading: LogReading, facts: Facts, not_checked: Sequence[NotChecked] = ()) -> Diagnosis:
    """One incident for each attempt that went wrong, and for an error that no number announced."""
    missing = [*not_checked, *(NotChecked(input="log", why=why) for why in reading.not_checked)]
    messages = message_signs(reading)
    ended = any(name in messages for name in FATAL)
    found = [(a, t) for a in reading.attempts if (t := trouble_of(a, ended=ended)) is not None]
    last = len(found) - 1
    foreseen = list(_foreseen(facts)) if found or ended else []
    incidents = [
        _incident(attempt, trouble, facts, messages if index == last else {}, foreseen)
        for index, (attempt, trouble) in enumerate(found)
    ]
    if not incidents:
        fatal = next((messages[name] for name in FATAL if name in messages), None)
        if fatal:
            attempt = reading.attempts[-1] if reading.attempts else Attempt(file="")
            trouble = Trouble(symptom=FATAL[fatal.name], step=attempt.last_step, text=fatal.text, place=fatal.place)
            incidents = [_incident(attempt, trouble, facts, messages, foreseen)]
    return Diagnosis(incidents=incidents, not_checked=missing)


def _incident(
    attempt: Attempt, trouble: Trouble, facts: Facts, messages: Mapping[str, Sign], foreseen: Sequence[Finding]
) -> Incident:
    signs = {**trouble.signs, **{name: sign for name, sign in messages.items() if name in SPEAKS}}
    signs |= {sign.name: sign for sign in _known(facts, signs)}
    sound = sound_loss(attempt) if trouble.symptom == "loss-scale-collapse" else None
    signs |= {"sound-loss": sound} if sound else {}
    event = {"event": "incident", "step": trouble.step, "symptom": trouble.symptom, "text": trouble.text}
    inputs = inputs_of(facts, event, None, attempt.signals)
    ranked = [_with_log(cause, signs, foreseen) for cause in rank(inputs)]
    ranked.sort(key=lambda cause: (not cause.proved, -cause.bits, cause.cause))
    seen = [
        f"{sign.text} ({sign.place})"
        for sign in signs.values()
        if sign.name != "no-deepspeed" and sign.text != trouble.text
    ]
    return Incident(
        step=trouble.step,
        rank=0,
        symptom=trouble.symptom,
        reproducible=None,
        origin=None,
        causes=[cause for cause in ranked if any(term.bits > 0 for term in cause.evidence)][:SHOWN],
        action="none",
        not_located=NO_TENSORS,
        last_good=trouble.last_good,
        last_step=max(attempt.last_step, trouble.step),
        message=f"{trouble.text} ({trouble.place})",
        seen=seen,
        next_check=next_check(signs) or "",
    )


def _known(facts: Facts, signs: Mapping[str, Sign]) -> Iterator[Sign]:
    """The dtype, and whether gradients pass through DeepSpeed, where that is known."""
    precision = facts.precision
    if precision is not None and precision.compute in ("float16", "bfloat16", "float32"):
        text = f"products are computed in {precision.compute}"
        yield Sign(name=precision.compute, text=text, place=precision.source or "configuration")
    if facts.parallel is not None and facts.parallel.kind not in (None, "deepspeed") and "sentinel-norm" not in signs:
        yield Sign(name="no-deepspeed", text="gradients do not pass through DeepSpeed", place="configuration")


def _foreseen(facts: Facts) -> Iterator[Finding]:
    """What the book would have said before the run, about these facts alone."""
    inputs = facts.by_name()
    for chapter in causes().values():
        function = chapter.function("foresee")
        yield from ask(function, inputs).results if function else ()


def _with_log(cause: RankedCause, signs: Mapping[str, Sign], foreseen: Sequence[Finding]) -> RankedCause:
    terms = [
        Evidence(text=f"{sign.place}: {sign.text}", bits=SPEAKS[name][cause.cause])
        for name, sign in signs.items()
        if cause.cause in SPEAKS.get(name, {})
    ]
    own = [finding for finding in foreseen if finding.cause == cause.cause]
    if own:
        worst = max(own, key=lambda finding: FORESEEN_BITS[finding.severity])
        terms.append(Evidence(text=f"could be foreseen: {worst.message}", bits=FORESEEN_BITS[worst.severity]))
    remedies = [f.remedy for f in own if f.remedy is not None] or cause.remedies
    bits = cause.bits + sum(term.bits for term in terms)
    return dataclasses.replace(cause, bits=bits, evidence=[*cause.evidence, *terms], remedies=remedies)
