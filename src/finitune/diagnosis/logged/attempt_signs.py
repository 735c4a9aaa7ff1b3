"""Signs around the numbers of an attempt: known messages, rewards, and the attempts that failed before it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from finitune.diagnosis.logged.signs import EARLY, MESSAGES, Sign, Trouble, place_at
from finitune.sources.logs.attempt import Attempt, LogReading

FAR_POLICY = 100.0
"""Nats; exp of it is beyond float32, and recipes keep a policy within tens."""
LOWERED = 2.0
"""A rate that was lowered on purpose; schedules of one recipe differ by less at the same length."""


def policy(attempt: Attempt) -> Iterator[Sign]:
    """Reinforcement learning, and a policy that has left the one it is compared with."""
    if not attempt.rewards:
        return
    loss, kl = attempt.trace("loss"), attempt.trace("kl")
    place = place_at(attempt, loss, loss.steps[0]) if len(loss) else attempt.file
    yield Sign(name="reinforcement", text="rewards are logged", place=place)
    far = next((n for n, value in enumerate(kl.values) if not abs(value) < FAR_POLICY), None)
    if far is not None:
        text = f"the divergence from the earlier policy is {kl.values[far]:.4g}"
        yield Sign(name="policy-ratio", text=text, place=f"{attempt.file}:{kl.lines[far]}")


def across(found: Sequence[tuple[Attempt, Trouble]]) -> Iterator[Sign]:
    """What the last attempt shows beside those that failed before it: the same step, and a lower rate in vain."""
    if len(found) < 2:
        return
    (last, trouble), earlier = found[-1], found[:-1]
    twins = [a for a, t in earlier if t.step == trouble.step > EARLY]
    if twins:
        text = f"step {trouble.step} is the first bad one in {len(twins) + 1} attempts"
        yield Sign(name="same-step", text=text, place=trouble.place)
    rate, rates = _largest_rate(last), [_largest_rate(attempt) for attempt, _ in earlier]
    if rate and max(rates) >= LOWERED * rate:
        text = f"it failed at learning rate {max(rates):.3g} and again at {rate:.3g}"
        yield Sign(name="lower-rate-bad", text=text, place=place_at(last, last.trace("lr"), last.trace("lr").steps[0]))


def _largest_rate(attempt: Attempt) -> float:
    return max((rate for rate in attempt.trace("lr").values if math.isfinite(rate)), default=0.0)


def message_signs(reading: LogReading) -> dict[str, Sign]:
    """Known messages, the first of each kind, by kind."""
    out: dict[str, Sign] = {}
    for one in reading.messages:
        if one.kind in MESSAGES:
            out.setdefault(one.kind, Sign(name=one.kind, text=f'"{one.text}"', place=one.place))
    if "rows-dropped" in out and "loader-without-length" in out:  # a stream has no length either, but no rows to drop
        nothing = out["loader-without-length"]
        text = f"rows without a target were dropped, and none is left: {nothing.text}"
        out.setdefault("no-sample-left", Sign(name="no-sample-left", text=text, place=nothing.place))
    return out
