"""Attempts of a log that went wrong: how, from which step on, and everything that is observed of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from finitune.diagnosis.logged.learning_rates import largest, lowered_in_vain, printed_learning_rate
from finitune.diagnosis.logged.lost_numbers import EARLY, RECOVERED, jumped, lost_numbers
from finitune.diagnosis.logged.rows import place_at, rows_of
from finitune.diagnosis.logged.trends import trends
from finitune.diagnosis.observed_settings import of_facts
from finitune.diagnosis.recorded import inputs_of
from finitune.facts import Facts, Optimizer
from finitune.observations import Observation, Observed, meanings
from finitune.rates import USUAL
from finitune.sources.logs.attempt import Attempt, LogReading, Trace
from finitune.sources.logs.messages import SYMPTOMS

USED = ("probability-tensor", "token-zero-output")
"""What a model prints whose outputs are NaN."""
FAR_POLICY = 100.0
"""Nats; exp of it is beyond float32, and recipes keep a policy within tens."""
TRACES = {"loss-scale-collapse": "skipped", "nonfinite-evaluation": "eval_loss", "huge-norm": "grad_norm",
          "rows-without-gradient": "grad_norm"}  # fmt: skip
"""Observation -> the trace whose line shows it, where that is not the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """The symptom of one attempt, its first step and line, and what is observed, messages included."""

    attempt: Attempt
    symptom: str
    step: int
    text: str
    place: str
    observed: Observed
    last_good: int | None = None

    def facts(self, facts: Facts) -> Facts:
        """`facts` as they were where it failed: at the rate that was printed, in the dtype of that phase."""
        high = self.observed.get("high-learning-rate")
        highest = largest(self.attempt)
        if (high or highest >= USUAL) and (facts.optimizer is None or facts.optimizer.lr is None):
            optimizer = facts.optimizer or Optimizer(source=high.place if high else self.attempt.file)
            facts = dataclasses.replace(facts, optimizer=dataclasses.replace(optimizer, lr=highest))
        precision = facts.precision
        if self.symptom != "nonfinite-evaluation" or precision is None or not precision.full_eval:
            return facts
        return dataclasses.replace(facts, precision=dataclasses.replace(precision, compute=precision.full_eval))

    def inputs(self, facts: Facts, beside: Observed) -> dict[str, Any]:
        """What `rank` reads: facts, numbers up to the bad step, and what is observed here and `beside` the attempt."""
        observed = {**beside, **of_facts(self.facts(facts)), **self.observed}
        if "sentinel-norm" in observed:  # DeepSpeed alone prints it, whatever the configuration says
            observed.pop("no-deepspeed", None)
            observed.pop("no-word-of-deepspeed", None)
        event = {"event": "incident", "step": self.step, "symptom": self.symptom, "text": f"{self.text} ({self.place})"}
        return inputs_of(self.facts(facts), event, None, self.attempt.signals) | {"observations": observed}


def failed_attempts(reading: LogReading) -> list[FailedAttempt]:
    """Every attempt that went wrong; messages belong to the last. An error that no number announced is one too."""
    messages = message_observations(reading)
    found = [failed for attempt in reading.attempts if (failed := _failed(attempt)) is not None]
    errors = [one for one in messages if one.name in SYMPTOMS and (one.name != "crash" or _ends(one, reading))]
    error = next(iter(sorted(errors, key=lambda one: one.name == "crash")), None)
    if not found and error:
        attempt = reading.attempts[-1] if reading.attempts else Attempt(file="")
        symptom, text = SYMPTOMS[error.name], f'"{error.text}"'
        if symptom == "crash":
            text = f"the log ends in {text}, and no numerical failure is seen before it"
        found = [_failure(attempt, symptom, attempt.last_step, text, error.place, (), None)]
    if found:
        last = found[-1]
        printed = [
            dataclasses.replace(one, text=f'"{one.text}"')
            for one in messages
            if one.name != "nonfinite-evaluation" or last.symptom == one.name  # training was lost first
        ]
        found[-1] = _with(last, [*_consequences(last, printed), *_across(found)])
    return found


def _ends(crash: Observation, reading: LogReading) -> bool:
    """Whether no row comes after it: what a program survives is no crash."""
    file, _, line = crash.place.rpartition(":")
    rows = [
        trace.lines[-1]
        for attempt in reading.attempts if attempt.file == file for trace in attempt.traces.values() if trace.lines
    ]  # fmt: skip
    return not rows or int(line) > max(rows)


def message_observations(reading: LogReading) -> list[Observation]:
    """Known messages in the order of the log, the first of each kind."""
    first: dict[str, Observation] = {}
    for one in reading.messages:
        first.setdefault(one.kind, Observation(name=one.kind, text=one.text, place=one.place))
    nothing = first.get("loader-without-length")
    if nothing and "rows-dropped" in first:  # a stream has no length either, but no rows to drop
        text = f"rows without a target were dropped, and none is left: {nothing.text}"
        first.setdefault("no-sample-left", Observation(name="no-sample-left", text=text, place=nothing.place))
    return [one for name, one in first.items() if name in meanings() and not name.startswith("tried-")]


def _consequences(last: FailedAttempt, printed: Sequence[Observation]) -> Iterator[Observation]:
    """The messages; a model that gives no finite number after its training was lost says only what it was saved as."""
    losses = last.attempt.trace("loss").values
    lost = len(losses) and (not math.isfinite(losses[-1]) or (losses[-1] == 0 and "hidden-loss" in last.observed))
    for one in printed:
        saved = lost and one.name in USED and "updates-skipped" not in last.observed
        yield dataclasses.replace(one, name="lost-model-used") if saved else one


def _failed(attempt: Attempt) -> FailedAttempt | None:
    """What went wrong: numbers that were lost, or else the first symptom that the whole log shows."""
    rows = rows_of(attempt)
    if lost := lost_numbers(attempt, rows):
        text = lost.observed[0].text
        return _failure(attempt, lost.symptom, lost.step, text, lost.place, lost.observed, lost.last_good)
    seen = next(iter(trends(attempt)), None)
    if seen is None:
        return None
    trace = attempt.trace(TRACES.get(seen.observation, "loss"))
    place = _span(attempt, trace, seen.step) if seen.symptom == "loss-scale-collapse" else ""
    place = place or place_at(attempt, trace, seen.step)
    observed = [Observation(name=seen.observation, text=seen.text, place=place), *printed_learning_rate(attempt)]
    first = int((rows.steps < seen.step).sum())
    last_good = None
    if seen.observation == "gradient-gone":
        observed += jumped(attempt, rows, first)
        last_good = int(rows.steps[first - 1]) if first else None
    skipped = attempt.trace("skipped")
    if seen.symptom == "loss-scale-collapse" and all(skipped.values):
        observed.append(Observation(name="from-the-start", text="no step before it was taken", place=place))
    return _failure(attempt, seen.symptom, seen.step, seen.text, place, observed, last_good)


def _unscaled(attempt: Attempt) -> Iterator[Observation]:
    """The loss scale that Megatron prints in bfloat16 and float32."""
    scale = attempt.trace("loss_scale")
    if len(scale) > 1 and all(value == 1 for value in scale.values) and not any(attempt.trace("skipped").values):
        text = f"the loss scale is 1 in all {len(scale)} rows"
        yield Observation(name="scale-one", text=text, place=place_at(attempt, scale, scale.steps[0]))


def _failure(
    attempt: Attempt,
    symptom: str,
    step: int,
    text: str,
    place: str,
    observed: Iterable[Observation],
    last_good: int | None,
) -> FailedAttempt:
    seen = {one.name: one for one in [*observed, *_unscaled(attempt)]}
    finite = _finite_loss(attempt) if symptom in ("loss-scale-collapse", "nonfinite-gradient") else ()
    return _with(
        FailedAttempt(
            attempt=attempt, symptom=symptom, step=step, text=text, place=place, observed=seen, last_good=last_good
        ),
        [*finite, *_policy(attempt)],
    )


def _with(failed: FailedAttempt, more: Iterable[Observation]) -> FailedAttempt:
    """The same with further observations; what was observed before counts."""
    return dataclasses.replace(failed, observed={**{one.name: one for one in more}, **failed.observed})


def _span(attempt: Attempt, trace: Trace, start: int) -> str:
    return f"{attempt.file}:{trace.line_at(start)}-{trace.line_at(trace.steps[-1])}" if len(trace) else ""


def _finite_loss(attempt: Attempt) -> Iterator[Observation]:
    """The loss was finite throughout, so that what overflowed did so in the backward."""
    trace = attempt.trace("loss")
    losses = trace.series().values
    if len(losses) >= RECOVERED and (abs(losses) < float("inf")).all() and losses.all():
        text = f"the loss is finite in all {len(losses)} rows"
        place = f"{attempt.file}:{trace.lines[0]}-{trace.lines[-1]}"
        yield Observation(name="finite-loss", text=text, place=place)


def _policy(attempt: Attempt) -> Iterator[Observation]:
    """Reinforcement learning, and a policy that has left the one it is compared with."""
    if not attempt.rewards:
        return
    loss, kl = attempt.trace("loss"), attempt.trace("kl")
    place = place_at(attempt, loss, loss.steps[0]) if len(loss) else attempt.file
    yield Observation(name="reinforcement", text="rewards are logged", place=place)
    far = next((n for n, value in enumerate(kl.values) if not abs(value) < FAR_POLICY), None)
    if far is not None:
        text = f"the divergence from the earlier policy is {kl.values[far]:.4g}"
        yield Observation(name="policy-ratio", text=text, place=f"{attempt.file}:{kl.lines[far]}")


def _across(found: Sequence[FailedAttempt]) -> Iterator[Observation]:
    """What the last attempt shows beside those that failed before it: the same step, and a lower rate in vain."""
    *others, last = found
    earlier = [one for one in others if one.attempt.run == last.attempt.run]
    twins = [one for one in earlier if one.step == last.step > EARLY]
    if twins:
        text = f"step {last.step} is the first bad one in {len(twins) + 1} attempts"
        yield Observation(name="same-step", text=text, place=last.place)
    yield from lowered_in_vain(last.attempt, [one.attempt for one in earlier])
