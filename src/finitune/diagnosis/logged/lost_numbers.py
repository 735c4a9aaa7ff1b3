"""Numbers that are not finite, or that a trainer prints as 0 instead: which, from where on, and what came before.

A step that was skipped, a spike or a warm-up of the loss scale that the run left behind is nothing, because a healthy
run has them too. No rule knows the scale of a loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from finitune.chapter import sightings
from finitune.diagnosis.logged.learning_rates import over_bad_rows
from finitune.diagnosis.logged.rows import Rows, counted, place_at
from finitune.observations import Observation
from finitune.series import CLIMBED, lowest_level
from finitune.sources.logs.attempt import Attempt
from finitune.sources.logs.deepspeed import groups_written_as

Flags = npt.NDArray[np.bool_]

RECOVERED = 3
"""So many finite rows at the end of an attempt say that it goes on."""
LONGEST_SKIP = 8
"""More skipped steps in a row than this are no settling of the loss scale; the window of its symptom."""
SETTLING = 24
"""Steps that a loss scale may take at the beginning to come down from DeepSpeed's old start of 2^32 to 2^8."""
ROUNDS_TO_ZERO = 0.01
"""Printed with few digits, a loss below this may be printed as 0.0."""
COME_DOWN = 0.1
"""Of the first loss: a loss with a margin, as contrastive ones have, is 0 in earnest once it has come down so far."""
SUDDEN = 20
"""So many finite rows without a climb announce nothing."""
EARLY = 2
OF_THE_UPDATE = ("nonfinite-loss", "hidden-loss", "gradient-lost-too")
"""What follows from the update with a gradient that was not finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostNumbers:
    """The bad rows of an attempt, and what is observed of them."""

    symptom: str
    step: int
    place: str
    observed: list[Observation]
    last_good: int | None


def lost_numbers(attempt: Attempt, rows: Rows) -> LostNumbers | None:
    """What was lost, and from which row on; None where every number is finite, or the run has left others behind."""
    if not len(rows.steps):
        return None
    bad_loss, bad_norm = ~np.isfinite(rows.loss), ~np.isfinite(rows.norm)
    zero = (rows.loss == 0) & ~_earned_zeros(attempt, rows)
    bad = bad_loss | bad_norm | zero
    if not bad.any() or (not (bad_loss | zero).any() and _left_behind(bad, rows)):
        return None
    first = int(np.argmax(bad))
    step = int(rows.steps[first])
    gradient_only = bad_norm[first] and not (bad_loss | zero)[first]
    place = place_at(attempt, attempt.trace("grad_norm" if gradient_only else "loss"), step)
    observed = [
        *_zeros(attempt, rows, zero, first),
        *_not_finite(attempt, rows, bad_loss),
        *_before(attempt, rows, zero, first, place),
        *_when(attempt, rows, first, place),
        *_passing(bad, bad_loss | zero, place),
        *over_bad_rows(attempt, rows, bad & ~(zero & (rows.norm == 0)), first),
    ]
    names = {one.name for one in observed}
    skipped = _skipped(rows, bad_loss | zero, first, place)
    if skipped and "updates-skipped" not in names:
        observed = [*(one for one in observed if one.name != "updates-taken"), skipped]  # some schedules run on
    if gradient_only and not skipped:  # its update made the weights, and with them every later loss, what they are
        observed = [one for one in observed if one.name not in OF_THE_UPDATE] or observed
    lost = next((one for one in observed if one.name in ("nonfinite-loss", "hidden-loss")), None)
    if skipped and lost:
        text = "the loss is lost although the updates are skipped: the forward itself is not finite"
        observed.append(Observation(name="forward-lost", text=text, place=lost.place))
    nothing = "zero-loss-zero-gradient" in names
    return LostNumbers(
        symptom="zero-gradient" if nothing else "nonfinite-gradient" if gradient_only else "nonfinite-loss",
        step=step,
        place=place,
        observed=observed,
        last_good=int(rows.steps[first - 1]) if first else None,
    )


def jumped(attempt: Attempt, rows: Rows, first: int) -> Iterator[Observation]:
    """A loss that is a multiple of the first one before the bad row, or in it: the updates had ruined the model."""
    printed = rows.loss[: first + 1][rows.has_loss[: first + 1]]
    values = printed[np.isfinite(printed)]
    if not len(values) or lowest_level(values.tolist()) is None or values.max() <= CLIMBED * values[0]:
        return
    highest = float(values.max())
    at = int(rows.steps[int(np.flatnonzero(rows.loss[: first + 1] == highest)[0])])
    text = f"loss {highest:.4g} at step {at}, {highest / float(values[0]):.2g} times the first"
    yield Observation(name="loss-jumped", text=text, place=place_at(attempt, attempt.trace("loss"), at))


def _earned_zeros(attempt: Attempt, rows: Rows) -> Flags:
    """Where a loss of 0 may be one: where it has come down to it, where it changes sign, and with rewards."""
    if attempt.rewards or (rows.loss < 0).any():
        return np.isfinite(rows.norm)
    earned = np.zeros(len(rows.loss), dtype=bool)
    if not (rows.loss == 0).any():
        return earned
    first = near = math.inf
    for index, (loss, norm) in enumerate(zip(rows.loss.tolist(), rows.norm.tolist(), strict=True)):
        low = near < ROUNDS_TO_ZERO or near < COME_DOWN * first < math.inf
        earned[index] = loss == 0 and low and math.isfinite(norm)
        if loss != 0 and math.isfinite(loss):
            first, near = min(first, loss) if first == math.inf else first, loss
    return earned


def _left_behind(bad: Flags, rows: Rows) -> bool:
    """Whether the run goes on after its bad rows: few in a row, finite ones between them, and the loss no higher."""
    at = np.flatnonzero(bad)
    runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    if at[0] == 0 and rows.steps[runs[0][-1]] <= rows.steps[0] + SETTLING:
        runs = runs[1:]
    longest = max((len(run) for run in runs), default=0)
    lost = sum(len(run) for run in runs)
    finite = rows.loss[at[0] :][~bad[at[0] :]]
    if bad[-1] or len(finite) < RECOVERED or longest > LONGEST_SKIP or lost > max(LONGEST_SKIP, 0.05 * len(bad)):
        return False
    before = rows.loss[: at[-1] + 1]
    return lowest_level(before.tolist()) is None or bool(np.median(finite[-RECOVERED:]) <= CLIMBED * np.median(before))


def _skipped(rows: Rows, lost: Flags, first: int, place: str) -> Observation | None:
    """Weights that had taken a gradient that is not finite would make every loss after it NaN."""
    finite = rows.has_loss & ~lost
    if not (~np.isfinite(rows.norm[:-1]) & finite[:-1] & finite[1:]).any():
        return None
    text = f"losses stay finite after the gradient norm of step {rows.steps[first]} was not: the update was skipped"
    return Observation(name="updates-skipped", text=text, place=place)


def _zeros(attempt: Attempt, rows: Rows, zero: Flags, first: int) -> Iterator[Observation]:
    """What the gradient norms beside printed zeros say of them."""
    if not zero.any():
        return
    at, how_many = int(np.argmax(zero)), counted(int(zero.sum()))
    norm, place = float(rows.norm[at]), place_at(attempt, attempt.trace("loss"), int(rows.steps[at]))
    groups = groups_written_as(norm) if rows.has_norm[at] else None
    written = [groups_written_as(float(one)) for one in rows.norm[first:][zero[first:] & rows.has_norm[first:]]]
    if groups and sum(map(bool, written)) >= max(1, int(zero.sum()) // 2):
        text = (
            f"the log shows loss 0 and grad_norm {norm:.4g} in {how_many}: DeepSpeed writes {norm:.4g} for a gradient "
            f"that is not finite, with {counted(groups, 'parameter group')}; the loss was NaN"
        )
        yield Observation(name="sentinel-norm", text=text, place=place)
        if first and groups_written_as(float(rows.norm[at - 1])) == groups and rows.loss[at - 1] != 0:
            before = f"the gradient of step {rows.steps[at - 1]} already was not finite"
            text = f"{before} while its loss is {rows.loss[at - 1]:.4g}"
            yield Observation(name="gradient-first", text=text, place=place)
    elif not rows.has_norm[at]:
        text = f"loss 0 in {how_many}, which a trainer prints for NaN"
        yield Observation(name="hidden-loss", text=text, place=place)
    elif not np.isfinite(rows.norm[zero]).any():
        text = f"the log shows loss 0 where the gradient norm is {norm:.4g} ({how_many}): the loss was NaN"
        yield Observation(name="hidden-loss", text=text, place=place)
        text = f"the gradient norm of step {rows.steps[at]} is {norm} beside its loss"
        yield Observation(name="gradient-lost-too", text=text, place=place)
    elif (rows.norm[zero] == 0).any():
        none = counted(int((rows.norm[zero] == 0).sum()))
        text = f"loss 0 and gradient norm 0 in {none}: nothing was learned from them"
        yield Observation(name="zero-loss-zero-gradient", text=text, place=place)
    else:
        text = f"loss 0 in {how_many} beside a finite gradient norm: the loss of a part of the batch was NaN"
        yield Observation(name="zero-loss-finite-gradient", text=text, place=place)


def _not_finite(attempt: Attempt, rows: Rows, bad_loss: Flags) -> Iterator[Observation]:
    """Losses that are printed as NaN or infinite, and the gradient norms beside them."""
    if not bad_loss.any():
        return
    at = int(np.argmax(bad_loss))
    loss, place = rows.loss[at], place_at(attempt, attempt.trace("loss"), int(rows.steps[at]))
    yield Observation(name="nonfinite-loss", text=f"the loss of step {rows.steps[at]} is {loss}", place=place)
    if rows.has_norm[at] and not np.isfinite(rows.norm[at]):
        text = f"the gradient norm of step {rows.steps[at]} is {rows.norm[at]} beside its loss"
        yield Observation(name="gradient-lost-too", text=text, place=place)
    if np.isinf(loss):
        yield Observation(name="infinite-loss", text=f"the loss of step {rows.steps[at]} is {loss}", place=place)
    beside = int((bad_loss & np.isnan(rows.loss) & rows.has_norm & np.isfinite(rows.norm)).sum())
    if beside:
        text = f"the loss is nan beside a finite gradient norm in {counted(beside)}"
        yield Observation(name="zero-loss-finite-gradient", text=text, place=place)


def _before(attempt: Attempt, rows: Rows, zero: Flags, first: int, place: str) -> Iterator[Observation]:
    """Whether the loss had jumped, or the gradient was the first to be lost."""
    ruined = list(jumped(attempt, rows, first))
    yield from ruined
    if not np.isfinite(rows.norm[first]):
        at = f"the gradient norm of step {rows.steps[first]} is {rows.norm[first]}"
        yield Observation(name="nonfinite-gradient", text=at, place=place)
        if not ruined and np.isfinite(rows.loss[first]) and not zero[first]:
            yield Observation(name="gradient-first", text=f"{at} while its loss is {rows.loss[first]:.4g}", place=place)


def _when(attempt: Attempt, rows: Rows, first: int, place: str) -> Iterator[Observation]:
    """How many finite rows came before, and whether they announced it."""
    if first <= EARLY:
        yield from _at_the_start(attempt, rows, first, place)
        return
    at = int(rows.steps[first - 1])
    trace = attempt.trace("loss")
    climbing = [s for s in sightings({"loss": trace.series().until(at)}) if s.symptom == "divergence"]
    if climbing:
        yield Observation(name="climbed", text=f"before it the {climbing[0].text}", place=place_at(attempt, trace, at))
    elif first < SUDDEN:
        yield Observation(name="midway", text=f"{counted(first, 'finite row')} before it", place=place)
    elif _no_higher(rows.loss[:first]):
        text = f"{counted(first, 'finite row')} before it, and none announces it"
        yield Observation(name="sudden", text=text, place=place)


def _no_higher(losses: npt.NDArray[np.float64]) -> bool:
    """Whether the newest losses are near the level of those before; true of losses that have no multiples."""
    return lowest_level(losses.tolist()) is None or bool(losses[-3:].max() <= CLIMBED * np.median(losses))


def _at_the_start(attempt: Attempt, rows: Rows, first: int, place: str) -> Iterator[Observation]:
    if attempt.last_epoch > len(rows.steps) + 1:
        return  # fewer rows than epochs: somebody cut the beginning off
    if not first and (rows.loss[0] == 0 or not np.isfinite(rows.loss[0])) and _at_the_first_step(attempt):
        text = "the loss is lost from the first step of the run on"
        yield Observation(name="first-step-lost", text=text, place=place)
    still = first == EARLY and attempt.trace("lr").at(rows.steps[:1], math.nan)[0] == 0  # the first update was 0
    if (first == 1 or still) and rows.steps[first] == first + 1:  # a row may stand for several steps
        text = "finite before the first update and lost after it"
        yield Observation(name="second-step", text=text, place=place)
    else:
        text = f"{counted(first, 'finite row')} before it" if first else "no row before it is finite"
        yield Observation(name="from-the-start", text=text, place=place)


def _at_the_first_step(attempt: Attempt) -> bool:
    """Whether the first row stands for the first step: it says so, or its epoch is as far from 0 as the next from it.

    The loss that a trainer prints as 0 is a mean over the rows up to here; a finite step among them would show.
    """
    epochs = attempt.epochs
    even = len(epochs) == 2 and epochs[0] > 0 and math.isclose(epochs[1], 2 * epochs[0], rel_tol=0.01)
    return attempt.begins or even


def _passing(bad: Flags, lost: Flags, place: str) -> Iterator[Observation]:
    first = int(np.argmax(lost))
    if first and lost[first:].all() and len(lost) - first > RECOVERED:
        text = f"the loss is lost in all {len(lost) - first:,} rows from there to the end: the weights are not finite"
        yield Observation(name="nan-stays", text=text, place=place)
    after = int(np.count_nonzero(~lost[first:])) if lost.any() else 0
    if after >= RECOVERED and not bad[-RECOVERED:].all():
        rest = f"finite in {after:,} after them: the weights are finite"
        text = f"the loss is lost in {counted(int(lost.sum()))} and {rest}"
        yield Observation(name="nan-passes", text=text, place=place)
