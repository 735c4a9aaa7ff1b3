"""What a log shows of an attempt that went wrong, in signs: each a plain observation with its line.

Pure functions of the signals. A step that was skipped, a spike or a warm-up of the loss scale that the run left behind
are no signs, because a healthy run has them too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from finitune.sources.logs.messages import KNOWN
from finitune.sources.logs.reading import Attempt, LogReading, Trace
from finitune.symptom import sightings

RECOVERED = 3
"""So many sound rows at the end of an attempt say that it goes on."""
LONGEST_SKIP = 8
"""More skipped steps in a row than this are no settling of the loss scale; the window of its symptom."""
SETTLES_BELOW = 2.0**16
"""Overflows above this scale only say that it began too high."""
CONVERGED = 0.01
"""Printed with four digits, a loss below this may reach 0.0 in earnest."""
SENTINEL_DIGITS = 2e-4
"""Relative: a norm of 1.41421 may be printed as 1.414."""
MOST_GROUPS = 16
SUDDEN = 20
EARLY = 2
WORSE_THAN_CHANCE = 15.0
"""The logarithm of the largest vocabulary is 12.5."""
TINY_RATE = 2e-7
"""A learning rate with which no update moves a weight far enough to break a run; see the taxonomy's signatures."""
MESSAGES = frozenset({*(kind for kind, _ in KNOWN), "scale-at-minimum"})
"""Kinds of what is said that are a sign; the others are facts."""
NUMBERS = frozenset({
    "sentinel-norm", "hidden-loss", "zero-loss-zero-gradient", "zero-loss-finite-gradient", "loss-not-finite",
    "gradient-first", "gradient-nan", "from-the-start", "sudden", "climbed", "diverged", "tiny-rate", "rate-frozen",
    "rate-advancing", "scale-fell", "sound-loss", "evaluation-only",
})  # fmt: skip
"""Every sign that numbers give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """One observation: its name, what was seen, and the lines that show it."""

    name: str
    text: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What went wrong in one attempt: the symptom, its first step and line, and every sign."""

    symptom: str
    step: int
    text: str
    place: str
    signs: Mapping[str, Sign] = field(default_factory=dict[str, Sign])
    last_good: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of an attempt that tell a loss or a norm, aligned; absent numbers are 1.0, which is sound."""

    steps: npt.NDArray[np.int64]
    loss: npt.NDArray[np.float64]
    norm: npt.NDArray[np.float64]
    has_norm: npt.NDArray[np.bool_]


def rows_of(attempt: Attempt) -> Rows:
    loss, norm = attempt.trace("loss"), attempt.trace("grad_norm")
    steps = np.union1d(np.asarray(loss.steps, dtype=np.int64), np.asarray(norm.steps, dtype=np.int64))
    known = np.isin(steps, np.asarray(norm.steps, dtype=np.int64))
    return Rows(steps=steps, loss=loss.at(steps, 1.0), norm=norm.at(steps, 1.0), has_norm=known)


def trouble_of(attempt: Attempt, *, ended: bool = False) -> Trouble | None:
    """What went wrong, the first and gravest; None for an attempt that is healthy. `ended`: an error ended it."""
    return _numbers(attempt) or _scale(attempt) or _climb(attempt, ended=ended) or _evaluation(attempt)


def groups_printed(norm: float) -> int | None:
    """How many groups of norm -1 DeepSpeed would print as this norm, in the digits that trainers print."""
    if not math.isfinite(norm) or norm < 1:
        return None
    groups = round(norm * norm)
    near = math.isclose(norm, math.sqrt(groups), rel_tol=SENTINEL_DIGITS)
    return groups if groups <= MOST_GROUPS and near else None


def _numbers(attempt: Attempt) -> Trouble | None:
    rows = rows_of(attempt)
    if not len(rows.steps):
        return None
    bad_loss, bad_norm = ~np.isfinite(rows.loss), ~np.isfinite(rows.norm)
    zero = (rows.loss == 0) & ~_earned_zero(attempt, rows)
    bad = bad_loss | bad_norm | zero
    if not bad.any() or (not (bad_loss | zero).any() and _recovered(bad, rows)):
        return None
    first = int(np.argmax(bad))
    step = int(rows.steps[first])
    trace = attempt.trace("loss") if (bad_loss | zero)[first] else attempt.trace("grad_norm")
    place = place_at(attempt, trace, step)
    signs = {sign.name: sign for sign in _number_signs(attempt, rows, bad, zero, first, place)}
    gradient_only = bad_norm[first] and not (bad_loss | zero)[first]
    symptom = "nonfinite-gradient" if gradient_only else "nonfinite-loss"
    if "zero-loss-zero-gradient" in signs:
        symptom = "zero-gradient"
    return Trouble(
        symptom=symptom, step=step, text=next(iter(signs.values())).text, place=place, signs=signs,
        last_good=int(rows.steps[first - 1]) if first else None,
    )  # fmt: skip


def _earned_zero(attempt: Attempt, rows: Rows) -> npt.NDArray[np.bool_]:
    """Where a loss of 0 may be one: in reinforcement learning, and where the loss had come down to it."""
    if attempt.rewards:
        return np.isfinite(rows.norm)
    if not (rows.loss == 0).any():
        return np.zeros(len(rows.loss), dtype=bool)
    earned = np.zeros(len(rows.loss), dtype=bool)
    near = math.inf
    for index, (loss, norm) in enumerate(zip(rows.loss.tolist(), rows.norm.tolist(), strict=True)):
        earned[index] = loss == 0 and near < CONVERGED and math.isfinite(norm)
        near = loss if loss != 0 and math.isfinite(loss) else near
    return earned


def _recovered(bad: npt.NDArray[np.bool_], rows: Rows) -> bool:
    """The run left the bad rows behind: few in a row, sound ones between and after them, and the loss no higher."""
    at = np.flatnonzero(bad)
    runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    longest = max(len(run) for run in runs)
    sound = rows.loss[at[0] :][~bad[at[0] :]]
    if bad[-1] or len(sound) < RECOVERED or longest > LONGEST_SKIP or len(at) > max(LONGEST_SKIP, 0.05 * len(bad)):
        return False
    return bool(np.median(sound[-RECOVERED:]) <= 2 * np.median(rows.loss[: at[-1] + 1]))


def _number_signs(
    attempt: Attempt,
    rows: Rows,
    bad: npt.NDArray[np.bool_],
    zero: npt.NDArray[np.bool_],
    first: int,
    place: str,
) -> Iterator[Sign]:
    loss, norm = rows.loss, rows.norm
    step = int(rows.steps[first])
    zeros = int(zero.sum())
    sentinel = [groups_printed(float(n)) if z else None for z, n in zip(zero[first:], norm[first:], strict=True)]
    constant = [groups for groups in sentinel if groups]
    at_zero = int(np.argmax(zero)) if zeros else first
    zero_place = f"{attempt.file}:{attempt.trace('loss').line_at(int(rows.steps[at_zero]))}"
    if len(constant) >= max(1, zeros // 2) and rows.has_norm[at_zero]:
        shown = float(norm[at_zero])
        text = (
            f"the log shows loss 0 and grad_norm {shown:.4g} in {_counted(zeros)}: DeepSpeed writes {shown:.4g} for a "
            f"gradient that is not finite, with {_counted(constant[0], 'parameter group')}; the loss was NaN"
        )
        yield Sign(name="sentinel-norm", text=text, place=zero_place)
    elif zeros and rows.has_norm[at_zero] and not np.isfinite(norm[zero]).any():
        text = (
            f"the log shows loss 0 where the gradient norm is {norm[at_zero]:.4g} ({_counted(zeros)}): the loss was NaN"
        )
        yield Sign(name="hidden-loss", text=text, place=zero_place)
    elif zeros and rows.has_norm[at_zero] and (norm[zero] == 0).any():
        text = f"loss 0 and gradient norm 0 in {_counted(int((norm[zero] == 0).sum()))}: nothing was learned from them"
        yield Sign(name="zero-loss-zero-gradient", text=text, place=zero_place)
    elif zeros and rows.has_norm[at_zero]:
        text = f"loss 0 in {_counted(zeros)} beside a finite gradient norm: the loss of a part of the batch was NaN"
        yield Sign(name="zero-loss-finite-gradient", text=text, place=zero_place)
    elif zeros:
        text = f"loss 0 in {_counted(zeros)}, which a trainer prints for NaN"
        yield Sign(name="hidden-loss", text=text, place=zero_place)
    nonfinite = ~np.isfinite(loss)
    if nonfinite.any():
        index = int(np.argmax(nonfinite))
        where = f"{attempt.file}:{attempt.trace('loss').line_at(int(rows.steps[index]))}"
        text = f"the loss of step {rows.steps[index]} is {loss[index]}"
        yield Sign(name="loss-not-finite", text=text, place=where)
    if not np.isfinite(norm[first]) and np.isfinite(loss[first]) and loss[first] != 0:
        text = f"the gradient norm of step {step} is {norm[first]} while its loss is {loss[first]:.4g}"
        yield Sign(name="gradient-first", text=text, place=place)
    elif constant and first and groups_printed(float(norm[first - 1])) == constant[0]:
        earlier = f"the gradient of step {rows.steps[first - 1]} already was not finite"
        text = f"{earlier} while its loss is {loss[first - 1]:.4g}"
        yield Sign(name="gradient-first", text=text, place=place)
    yield from _when(attempt, rows, first, place)
    yield from _rate(attempt, rows, bad & ~(zero & (norm == 0)), first)


def _counted(count: int, noun: str = "row") -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _when(attempt: Attempt, rows: Rows, first: int, place: str) -> Iterator[Sign]:
    before = rows.loss[:first]
    if first <= EARLY:
        if attempt.last_epoch > len(rows.steps) + 1:
            return  # fewer rows than epochs: somebody cut the beginning off
        yield Sign(
            name="from-the-start",
            text=f"{_counted(first, 'sound row')} before it" if first else "no row before it is sound",
            place=place,
        )
        return
    at = int(rows.steps[first - 1])
    trace = attempt.trace("loss")
    seen = trace.series().until(at)
    climbing = [s for s in sightings({"loss": seen}) if s.symptom == "divergence"]
    if climbing:
        yield Sign(name="climbed", text=f"before it the {climbing[0].text}", place=f"{place_at(attempt, trace, at)}")
    elif first >= SUDDEN and float(np.max(before[-3:])) <= 2 * float(np.median(before)):
        yield Sign(name="sudden", text=f"{_counted(first, 'sound row')} before it, and no sign in them", place=place)


def _rate(attempt: Attempt, rows: Rows, bad: npt.NDArray[np.bool_], first: int) -> Iterator[Sign]:
    rate = attempt.trace("lr")
    steps = rows.steps[first:][bad[first:]]
    values = rate.at(steps, math.nan)
    values = values[np.isfinite(values)]
    if not len(values):
        return
    place = place_at(attempt, rate, int(steps[0]))
    if float(np.max(rate.at(rows.steps[: first + 1], 0.0))) <= TINY_RATE:
        yield Sign(name="tiny-rate", text=f"the learning rate was {values[0]:.3g} when it failed", place=place)
    frozen = bool(np.all(values == values[0]))
    sound = rate.at(rows.steps[:first], math.nan)
    varied = len(np.unique(sound[np.isfinite(sound)])) > 1
    # a schedule that is constant stands still in any case
    if len(values) >= 3 and (not frozen or varied or values[0] <= TINY_RATE):
        word = "stands still" if frozen else "goes on"
        what = "the updates are skipped" if frozen else "bad updates are applied"
        text = f"the learning rate {word} over {len(values)} bad rows: {what}"
        yield Sign(name="rate-frozen" if frozen else "rate-advancing", text=text, place=place)


def place_at(attempt: Attempt, trace: Trace, step: int) -> str:
    return f"{attempt.file}:{trace.line_at(step)}"


def _scale(attempt: Attempt) -> Trouble | None:
    """The loss scale fell and did not come back; overflows above the usual start only show a high start."""
    scale, skipped = attempt.trace("loss_scale"), attempt.trace("skipped")
    low = [(s, v) for s, v in zip(scale.steps, scale.values, strict=True) if v < SETTLES_BELOW]
    if not low or not len(skipped):
        return None
    start = low[0][0]
    kept = Trace()
    for step, value, line in zip(skipped.steps, skipped.values, skipped.lines, strict=True):
        if step >= start:
            kept.add(step, value, line)
    seen = [s for s in sightings({"loss_scale": scale.series(), "skipped": kept.series()})
            if s.symptom == "loss-scale-collapse"]  # fmt: skip
    if not seen:
        return None
    last = skipped.steps[-1]
    place = f"{attempt.file}:{skipped.line_at(start)}-{skipped.line_at(last)}"
    lost = int(sum(kept.values))
    fell = f"the loss scale fell from {2 * low[0][1]:g} to {scale.values[-1]:g}"
    text = f"{fell} in {lost} skipped steps and does not recover"
    signs = {"scale-fell": Sign(name="scale-fell", text=text, place=place)}
    sound = sum(1 for value in skipped.values if not value)
    if not sound:
        signs["from-the-start"] = Sign(name="from-the-start", text="no step before it was sound", place=place)
    return Trouble(symptom="loss-scale-collapse", step=start, text=text, place=place, signs=signs, last_good=None)


def _climb(attempt: Attempt, *, ended: bool) -> Trouble | None:
    """The loss went up and stayed there; in reinforcement learning it has no level."""
    loss = attempt.trace("loss")
    if attempt.rewards or not len(loss) or (ended and len(loss) < RECOVERED):
        return None
    seen = [s.text for s in sightings({"loss": loss.series()}) if s.symptom == "divergence"]
    values = np.asarray(loss.values)
    quarter = max(RECOVERED, len(values) // 4)
    low, late = float(np.min(values[:quarter])), float(np.median(values[-quarter:]))
    if not seen and len(values) > 2 * RECOVERED and late > WORSE_THAN_CHANCE and 0 < 2 * low < late:
        seen = [f"loss {late:.4g} at the end, {late / low:.2g} times its level before and worse than guessing"]
    if not seen:
        return None
    step = int(loss.steps[-1])
    place = place_at(attempt, loss, step)
    sign = Sign(name="diverged", text=seen[0], place=place)
    return Trouble(symptom="divergence", step=step, text=seen[0], place=place, signs={"diverged": sign})


def _evaluation(attempt: Attempt) -> Trouble | None:
    trace = attempt.trace("eval_loss")
    bad = [(s, v) for s, v in zip(trace.steps, trace.values, strict=True) if not math.isfinite(v)]
    if not bad:
        return None
    step, value = bad[0]
    place = place_at(attempt, trace, step)
    text = f"the loss of evaluation is {value} at step {step}, that of training is finite"
    return Trouble(symptom="nonfinite-evaluation", step=step, text=text, place=place,
                   signs={"evaluation-only": Sign(name="evaluation-only", text=text, place=place)})  # fmt: skip


def sound_loss(attempt: Attempt) -> Sign | None:
    """The loss was finite throughout, so that what overflowed did so in the backward."""
    trace = attempt.trace("loss")
    values = np.asarray(trace.values)
    if len(values) < RECOVERED or not (np.isfinite(values) & (values > 0)).all():
        return None
    text = f"the loss is finite in all {len(values)} rows"
    return Sign(name="sound-loss", text=text, place=f"{attempt.file}:{trace.lines[0]}-{trace.lines[-1]}")


def message_signs(reading: LogReading) -> dict[str, Sign]:
    """Known messages, the first of each kind, by kind."""
    out: dict[str, Sign] = {}
    for one in reading.said:
        if one.kind in MESSAGES:
            out.setdefault(one.kind, Sign(name=one.kind, text=f'"{one.text}"', place=one.place))
    return out
