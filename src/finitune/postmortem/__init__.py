"""After a run that nobody watched: what its logs show, what they leave open, and the check that would tell.

Signs are read from the logs (`signs`) and weighed by the chapters, as are facts from the log, the configuration, the
model and the data. Every piece of evidence names its line; `question` has the check that separates what is left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finitune.diagnosis import SHOWN, inputs_of, rank
from finitune.facts import Facts
from finitune.finding import Diagnosis, Incident, NotChecked, UnreadableInput
from finitune.postmortem.lookalikes import FATAL
from finitune.postmortem.signs import MESSAGES, Sign, Trouble, message_signs, sound_loss, trouble_of
from finitune.question import next_check
from finitune.sources import Config, gather, logs
from finitune.sources.circumstances import of_facts
from finitune.sources.logs import Attempt, LogReading
from finitune.sources.reading import Track, untracked

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
    if not (reading.attempts or any(one.kind in MESSAGES for one in reading.said)):
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
    return Diagnosis(incidents=[_incident(seen, facts) for seen in seen_in(reading)], not_checked=missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An attempt that went wrong: how, and every sign of it, messages included."""

    attempt: Attempt
    trouble: Trouble
    signs: Mapping[str, Sign]

    def observations(self, facts: Facts) -> dict[str, str]:
        """What chapters weigh of it and of the circumstances, each with its line."""
        return of_facts(facts) | {name: f"{sign.place}: {sign.text}" for name, sign in self.signs.items()}

    def inputs(self, facts: Facts, observed: Mapping[str, str]) -> dict[str, Any]:
        """What `rank` reads: facts, numbers up to the bad step, and what was observed."""
        told = dict(observed)
        if "sentinel-norm" in told:  # DeepSpeed alone prints it, whatever the configuration says
            told.pop("no-deepspeed", None)
        trouble = self.trouble
        text = f"{trouble.text} ({trouble.place})"
        event = {"event": "incident", "step": trouble.step, "symptom": trouble.symptom, "text": text}
        return inputs_of(facts, event, None, self.attempt.signals) | {"observations": told}


def seen_in(reading: LogReading) -> list[Seen]:
    """Every attempt that went wrong; messages belong to the last."""
    messages = message_signs(reading)
    ended = any(name in messages for name in FATAL)
    found = [(a, t) for a in reading.attempts if (t := trouble_of(a, ended=ended)) is not None]
    if not found and (fatal := next((messages[name] for name in FATAL if name in messages), None)):
        attempt = reading.attempts[-1] if reading.attempts else Attempt(file="")
        symptom = FATAL[fatal.name]
        found = [(attempt, Trouble(symptom=symptom, step=attempt.last_step, text=fatal.text, place=fatal.place))]
    last = len(found) - 1
    return [
        _seen(attempt, trouble, messages if index == last else {}) for index, (attempt, trouble) in enumerate(found)
    ]


def _seen(attempt: Attempt, trouble: Trouble, messages: Mapping[str, Sign]) -> Seen:
    sound = sound_loss(attempt) if trouble.symptom == "loss-scale-collapse" else None
    signs = {**trouble.signs, **messages, **({"sound-loss": sound} if sound else {})}
    return Seen(attempt=attempt, trouble=trouble, signs=signs)


def _incident(seen: Seen, facts: Facts) -> Incident:
    attempt, trouble = seen.attempt, seen.trouble
    observed = seen.observations(facts)
    ranked = rank(seen.inputs(facts, observed))
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
        seen=[f"{sign.text} ({sign.place})" for sign in seen.signs.values() if sign.text != trouble.text],
        next_check=next_check(ranked, observed, facts.by_name()),
        source="log",
    )
