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

from finitune.chapter import sightings
from finitune.series import WORSE_THAN_CHANCE
from finitune.sources.logs.attempt import Attempt, Trace
from finitune.sources.logs.messages import KNOWN

RECOVERED = 3
"""So many sound rows at the end of an attempt say that it goes on."""
LONGEST_SKIP = 8
"""More skipped steps in a row than this are no settling of the loss scale; the window of its symptom."""
SETTLING = 24
"""Steps that a loss scale may take at the beginning to come down from DeepSpeed's old start of 2^32 to 2^8."""
CONVERGED = 0.01
"""Printed with four digits, a loss below this may reach 0.0 in earnest."""
SENTINEL_DIGITS = 2e-4
"""Relative: a norm of 1.41421 may be printed as 1.414."""
MOST_GROUPS = 16
SUDDEN = 20
EARLY = 2
HIGH_RATE = 0.05
"""Adam moves every weight by about the rate, and the weights of language models are about 0.02."""
TINY_RATE = 2e-7
"""A learning rate with which no update moves a weight far enough to break a run; see the taxonomy's signatures."""
MESSAGES = frozenset({*(kind for kind, _ in KNOWN), "scale-at-minimum", "grouped-gemm", "spread-over-cards"})
"""Kinds of what is said that are a sign; the others are facts."""
NUMBERS = frozenset({
    "sentinel-norm", "hidden-loss", "zero-loss-zero-gradient", "zero-loss-finite-gradient", "loss-not-finite",
    "gradient-first", "gradient-nan", "from-the-start", "sudden", "climbed", "diverged", "tiny-rate", "rate-frozen",
    "rate-advancing", "scale-fell", "sound-loss", "evaluation-only", "second-step", "huge-norm", "loss-repeats",
    "same-step", "lower-rate-bad", "reinforcement", "policy-ratio", "loss-jumped", "nan-passes", "high-rate", "dead",
    "first-step-lost", "gradient-lost-too", "midway", "rows-without-gradient",
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
    steps = np.sort(np.concatenate((np.asarray(loss.steps), np.asarray(norm.steps))), kind="stable")
    steps = steps[np.diff(steps, prepend=-1) > 0]  # as np.union1d, which takes no advantage of their order
    return Rows(steps=steps, loss=loss.at(steps, 1.0), norm=norm.at(steps, 1.0), has_norm=norm.has(steps))


def groups_printed(norm: float) -> int | None:
    """How many groups of norm -1 DeepSpeed would print as this norm, in the digits that trainers print."""
    if not math.isfinite(norm) or norm < 1:
        return None
    groups = round(norm * norm)
    near = math.isclose(norm, math.sqrt(groups), rel_tol=SENTINEL_DIGITS)
    return groups if groups <= MOST_GROUPS and near else None


def numbers_lost(attempt: Attempt, rows: Rows) -> Trouble | None:
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
    if at[0] == 0 and rows.steps[runs[0][-1]] <= rows.steps[0] + SETTLING:
        runs = runs[1:]
    longest = max((len(run) for run in runs), default=0)
    spread = sum(len(run) for run in runs)
    sound = rows.loss[at[0] :][~bad[at[0] :]]
    if bad[-1] or len(sound) < RECOVERED or longest > LONGEST_SKIP or spread > max(LONGEST_SKIP, 0.05 * len(bad)):
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
    told = (zero & rows.has_norm)[first:]
    sentinel = [groups_printed(float(n)) if z else None for z, n in zip(told, norm[first:], strict=True)]
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
        if rows.has_norm[index] and not np.isfinite(norm[index]):
            yield Sign(name="gradient-lost-too", text=f"and its gradient norm is {norm[index]}", place=where)
        sound = nonfinite & rows.has_norm & np.isfinite(norm)
        if sound.any():
            text = f"the loss is {loss[index]} beside a finite gradient norm in {_counted(int(sound.sum()))}"
            yield Sign(name="zero-loss-finite-gradient", text=text, place=where)
    ruined = jumped(attempt, rows, first)
    if ruined:
        yield ruined
    elif not np.isfinite(norm[first]) and np.isfinite(loss[first]) and loss[first] != 0:
        text = f"the gradient norm of step {step} is {norm[first]} while its loss is {loss[first]:.4g}"
        yield Sign(name="gradient-first", text=text, place=place)
    elif constant and first and groups_printed(float(norm[first - 1])) == constant[0]:
        text = f"the gradient of step {rows.steps[first - 1]} already was not finite"
        yield Sign(name="gradient-first", text=f"{text} while its loss is {loss[first - 1]:.4g}", place=place)
    yield from _when(attempt, rows, first, place)
    lost = nonfinite | zero
    after = int(np.count_nonzero(~lost[int(np.argmax(lost)) :])) if lost.any() else 0
    if after >= RECOVERED and not bad[-RECOVERED:].all():
        text = (
            f"the loss is lost in {_counted(int(lost.sum()))} and sound in {after:,} after them: the weights are sound"
        )
        yield Sign(name="nan-passes", text=text, place=place)
    yield from _rate(attempt, rows, bad & ~(zero & (norm == 0)), first)


def jumped(attempt: Attempt, rows: Rows, first: int) -> Sign | None:
    """A loss beyond any guess before the first bad number, or beside it: the updates had ruined the model."""
    told = rows.loss[: first + 1]
    values = np.where(np.isfinite(told), told, 0.0)
    index, begin = int(np.argmax(values)), float(told[0])
    highest = float(values[index])
    if not math.isfinite(begin) or begin <= 0 or highest <= max(WORSE_THAN_CHANCE, 2 * begin):
        return None
    at = int(rows.steps[index])
    text = f"loss {highest:.4g} at step {at}, {highest / begin:.2g} times the first and worse than guessing"
    return Sign(name="loss-jumped", text=text, place=place_at(attempt, attempt.trace("loss"), at))


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
        if not first and (rows.loss[0] == 0 or not np.isfinite(rows.loss[0])) and _at_the_beginning(attempt):
            text = "the loss is lost from the first step of the run on"
            yield Sign(name="first-step-lost", text=text, place=place)
        still = first == EARLY and attempt.trace("lr").at(rows.steps[:1], math.nan)[0] == 0  # the first update was 0
        if (first == 1 or still) and rows.steps[first] == first + 1:  # a row may stand for several steps
            text = "sound before the first update and lost after it"
            yield Sign(name="second-step", text=text, place=place)
        return
    at = int(rows.steps[first - 1])
    trace = attempt.trace("loss")
    seen = trace.series().until(at)
    climbing = [s for s in sightings({"loss": seen}) if s.symptom == "divergence"]
    if climbing:
        yield Sign(name="climbed", text=f"before it the {climbing[0].text}", place=f"{place_at(attempt, trace, at)}")
    elif first >= SUDDEN and float(np.max(before[-3:])) <= 2 * float(np.median(before)):
        yield Sign(name="sudden", text=f"{_counted(first, 'sound row')} before it, and no sign in them", place=place)
    elif first < SUDDEN:
        yield Sign(name="midway", text=f"{_counted(first, 'sound row')} before it", place=place)


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
    if (high := high_rate(attempt)) is not None:
        yield high
    frozen = bool(np.all(values == values[0]))
    sound = rate.at(rows.steps[:first], math.nan)
    varied = len(np.unique(sound[np.isfinite(sound)])) > 1
    # a schedule that is constant stands still in any case
    if len(values) >= 3 and (not frozen or varied or values[0] <= TINY_RATE):
        word = "stands still" if frozen else "goes on"
        what = "the updates are skipped" if frozen else "bad updates are applied"
        text = f"the learning rate {word} over {len(values)} bad rows: {what}"
        yield Sign(name="rate-frozen" if frozen else "rate-advancing", text=text, place=place)


def _at_the_beginning(attempt: Attempt) -> bool:
    """The first row tells of the first step: it says so, or its epoch is as far from 0 as the next from it.

    The loss that a trainer prints as 0 is a mean over the rows up to here; a sound step among them would show.
    """
    epochs = attempt.epochs
    spread = len(epochs) == 2 and epochs[0] > 0 and math.isclose(epochs[1], 2 * epochs[0], rel_tol=0.01)
    return attempt.begins or spread


def high_rate(attempt: Attempt) -> Sign | None:
    rate = attempt.trace("lr")
    highest = max(rate.values, default=0.0)
    if highest < HIGH_RATE:
        return None
    step = rate.steps[int(np.argmax(np.asarray(rate.values)))]
    return Sign(name="high-rate", text=f"a learning rate of {highest:.3g}", place=place_at(attempt, rate, step))


def place_at(attempt: Attempt, trace: Trace, step: int) -> str:
    return f"{attempt.file}:{trace.line_at(step)}"


def sound_loss(attempt: Attempt) -> Sign | None:
    """The loss was finite throughout, so that what overflowed did so in the backward."""
    trace = attempt.trace("loss")
    values = np.asarray(trace.values)
    if len(values) < RECOVERED or not (np.isfinite(values) & (values > 0)).all():
        return None
    text = f"the loss is finite in all {len(values)} rows"
    return Sign(name="sound-loss", text=text, place=f"{attempt.file}:{trace.lines[0]}-{trace.lines[-1]}")
