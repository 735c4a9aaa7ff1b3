"""After a run that nobody watched: what its logs show, what they leave open, and the check that would tell.

Signs are read from the logs (`signs`) and weighed by the chapters, as are facts from the log, the configuration, the
model and the data. Every piece of evidence names its line; `question` has the check that separates what is left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finitune.chapter import causes, tells_of
from finitune.diagnosis.advice import useless
from finitune.diagnosis.logged.attempt_signs import across, message_signs, policy
from finitune.diagnosis.logged.fatal import FATAL
from finitune.diagnosis.logged.hidden_faults import unseen
from finitune.diagnosis.logged.signs import MESSAGES, Sign, Trouble, sound_loss
from finitune.diagnosis.logged.troubles import trouble_of
from finitune.diagnosis.next_question import next_check
from finitune.diagnosis.ranking import SHOWN, foreseen, inputs_of, rank
from finitune.facts import Facts, Optimizer
from finitune.finding import Diagnosis, Incident, NotChecked, UnreadableInput
from finitune.sources import logs
from finitune.sources.cases.circumstances import of_facts
from finitune.sources.cases.trials import Trial, in_facts
from finitune.sources.gather import Config, gather
from finitune.sources.logs import Attempt, LogReading
from finitune.sources.logs.banners import TRIED
from finitune.sources.result import Track, untracked

SPOKEN_BY_DEEPSPEED = ("deepspeed", "overflow", "zero-stage", "overlap", "scale-at-minimum")
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
    if not (reading.attempts or any(one.kind in MESSAGES for one in reading.messages)):
        named = ", ".join(str(file) for file in files)
        raise UnreadableInput(
            f"{named}: no line tells a loss, a step or a known error (expected the log of a training)"
        )
    facts, missing = reading.facts, list[NotChecked]()
    if configs or model or data or gpu or requirements:
        gathered = gather(*configs, model=model, data=data, gpu=gpu, requirements=requirements, track=track)
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
    incidents = [_incident(seen, reading, facts, silent) for seen in seen_in(reading, facts)]
    if not incidents:
        incidents, not_seen = unseen(facts)
        missing += not_seen
    return Diagnosis(incidents=incidents, not_checked=missing)


def silence(reading: LogReading, facts: Facts) -> dict[str, str]:
    """What it says that neither the log nor a configuration that is known speaks of something."""
    silent = dict[str, str]()
    if facts.parallel is None and not any(one.kind in SPOKEN_BY_DEEPSPEED for one in reading.messages):
        silent["no-word-of-deepspeed"] = "neither the log nor the configuration speaks of DeepSpeed"
    if facts.parallel and facts.parallel.zero_stage in (1, 2) and facts.parallel.overlap_comm is None:
        silent["overlap-not-asked"] = "overlap_comm is not asked for, and ZeRO-1 and ZeRO-2 leave it off"
    if facts.quantization is None:
        silent["no-word-of-quantisation"] = "neither the log nor the configuration speaks of quantised weights"
    return silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An attempt that went wrong: how, and every sign of it, messages included."""

    attempt: Attempt
    trouble: Trouble
    signs: Mapping[str, Sign]

    def facts(self, facts: Facts) -> Facts:
        """`facts` as they were where it failed: at the rate that was printed, in the dtype of that phase."""
        if "high-rate" in self.signs and (facts.optimizer is None or facts.optimizer.lr is None):
            optimizer = facts.optimizer or Optimizer(source=self.signs["high-rate"].place)
            highest = max(self.attempt.trace("lr").values)
            facts = dataclasses.replace(facts, optimizer=dataclasses.replace(optimizer, lr=highest))
        precision = facts.precision
        if self.trouble.symptom != "nonfinite-evaluation" or precision is None or not precision.full_eval:
            return facts
        return dataclasses.replace(facts, precision=dataclasses.replace(precision, compute=precision.full_eval))

    def observations(self, facts: Facts) -> dict[str, str]:
        """What chapters weigh of it and of the circumstances, each with its line."""
        return of_facts(self.facts(facts)) | {name: f"{sign.place}: {sign.text}" for name, sign in self.signs.items()}

    def inputs(self, facts: Facts, observed: Mapping[str, str]) -> dict[str, Any]:
        """What `rank` reads: facts, numbers up to the bad step, and what was observed."""
        told = dict(observed)
        if "sentinel-norm" in told:  # DeepSpeed alone prints it, whatever the configuration says
            told.pop("no-deepspeed", None)
            told.pop("no-word-of-deepspeed", None)
        if "hidden-loss" in self.signs:  # a printed 0 is no finite loss, so the gradient was not the first
            for name in {"gradient-first", "gradient-nan"} - self.signs.keys():
                told.pop(name, None)
        trouble = self.trouble
        text = f"{trouble.text} ({trouble.place})"
        event = {"event": "incident", "step": trouble.step, "symptom": trouble.symptom, "text": text}
        return inputs_of(self.facts(facts), event, None, self.attempt.signals) | {"observations": told}


def seen_in(reading: LogReading, facts: Facts | None = None) -> list[Seen]:
    """Every attempt that went wrong; messages belong to the last. `facts` are those of its configuration too."""
    messages = message_signs(reading)
    ended = any(name in messages for name in FATAL)
    ruinous = _ruinous(facts) if facts else None
    found = [(a, t) for a in reading.attempts if (t := trouble_of(a, ended=ended, ruinous=ruinous)) is not None]
    if not found and (fatal := next((messages[name] for name in FATAL if name in messages), None)):
        attempt = reading.attempts[-1] if reading.attempts else Attempt(file="")
        symptom = FATAL[fatal.name]
        found = [(attempt, Trouble(symptom=symptom, step=attempt.last_step, text=fatal.text, place=fatal.place))]
    messages |= {sign.name: sign for sign in across(found)}
    last = len(found) - 1
    return [
        _seen(attempt, trouble, messages if index == last else {}) for index, (attempt, trouble) in enumerate(found)
    ]


def _ruinous(facts: Facts) -> Sign | None:
    """A setting with which no model learns, where `check` calls it an error; its chapter names the sign in `ruins`."""
    inputs = facts.by_name()
    for chapter in causes().values():
        sign: str | None = getattr(chapter.module, "ruins", None)
        finding = foreseen(chapter, inputs) if sign else None
        if sign and finding and finding.severity == "error":
            return Sign(name=sign, text=finding.message, place=finding.where.file or "the configuration")
    return None


def trials(seen: Seen | None, reading: LogReading, facts: Facts) -> Iterator[Trial]:
    """What was tried, as the numbers of the log, its words and the settings show it."""
    for sign, name in (("tiny-rate", "tiny rate"), ("lower-rate-bad", "lower rate")):
        if seen and sign in seen.signs:
            yield Trial(name=name, text=seen.signs[sign].text, place=seen.signs[sign].place)
    for one in reading.messages:
        if one.kind.startswith(TRIED):
            yield Trial(name=one.kind.removeprefix(TRIED), text=one.text, place=one.place)
    yield from in_facts(facts)


def _seen(attempt: Attempt, trouble: Trouble, messages: Mapping[str, Sign]) -> Seen:
    overflow = trouble.symptom in ("loss-scale-collapse", "nonfinite-gradient")
    sound = sound_loss(attempt) if overflow else None
    signs = {**trouble.signs, **messages, **({"sound-loss": sound} if sound else {})}
    signs |= {sign.name: sign for sign in policy(attempt)}
    return Seen(attempt=attempt, trouble=trouble, signs=signs)


def _explains(cause: str, signs: Mapping[str, Sign]) -> bool:
    """Does the chapter name one of the error texts?"""
    fatal = signs.keys() & FATAL.keys()
    return any(bits > 0 and fatal & set(names) for names, bits, _ in tells_of(causes()[cause]))


def _incident(seen: Seen, reading: LogReading, facts: Facts, silent: Mapping[str, str]) -> Incident:
    attempt, trouble = seen.attempt, seen.trouble
    observed = {**silent, **seen.observations(facts)}
    ranked = rank(seen.inputs(facts, observed))
    if trouble.symptom in FATAL.values() and not trouble.signs:  # an error text alone: who does not explain it is out
        ranked = [one for one in ranked if _explains(one.cause, seen.signs)] or ranked
    shown = [cause for cause in ranked if any(term.bits > 0 for term in cause.evidence)][:SHOWN]
    return Incident(
        step=trouble.step,
        rank=0,
        symptom=trouble.symptom,
        reproducible=None,
        origin=None,
        causes=shown,
        action="none",
        not_located=NO_TENSORS,
        last_good=trouble.last_good,
        last_step=max(attempt.last_step, trouble.step),
        message=f"{trouble.text} ({trouble.place})",
        seen=[f"{sign.text} ({sign.place})" for sign in seen.signs.values() if sign.text != trouble.text],
        next_check=next_check(ranked, observed, facts.by_name()),
        source="log",
        does_not_help=useless(trials(seen, reading, facts), observed, shown[0].cause) if shown else (),
    )
