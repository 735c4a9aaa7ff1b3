"""Experiments on a captured step: arms of the leading causes, each with what came out, up to a proof."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from finitune.monitor.capture.step import Capture
from finitune.monitor.investigation import Investigation
from finitune.monitor.probes.finite import is_bad_but_for_masks
from finitune.monitor.replay.arms import arm
from finitune.monitor.replay.fewer_rows import guilty, rows_of
from finitune.monitor.replay.limits import empty_cache
from finitune.monitor.replay.placeholders import placeholders
from finitune.monitor.replay.rerun import Setting, rerun
from finitune.monitor.replay.trial import Trial
from finitune.outliers import median
from finitune.series import is_noise, usual_low
from finitune.symptoms.dead_update import BEFORE, COLLAPSE, IN_A_ROW
from finitune.symptoms.stagnation import HALF

MAX_EXPERIMENTS = 8
DIVERGED = 4.0
"""A loss this many times the level that the run had reached is no healthy step, finite or not, unless batches differ as
much."""
BEARABLE_SCALE = 2.0**10
"""A loss that is bad by itself is examined at a loss scale that a healthy float16 run bears; a scale that has yet to
settle would spoil the gradients of an arm that cures."""

STANDS_STILL: Mapping[str, Callable[[Trial, Investigation], bool]] = {
    "stagnation": lambda trial, _: trial.moved < HALF,
    "dead-update": lambda trial, inquiry: trial.ratio < COLLAPSE * _usual_update(inquiry),
}
"""Symptoms of an update that comes to nothing -> whether a trial update does."""
UNEVEN = 0.25
"""Samples of unequal length have unequal shares in the mean of their losses."""
CONTENDERS = 2
"""How many leading causes are put to the test."""
OF_THE_LAST_UPDATE = "update-times"
"""How arms begin that change what the update before did."""
OF_SAMPLES = "leave-rows-out"
"""How the arm begins that leaves samples out, of what the loss holds as well."""
A_FEW_TIMES = 10.0
"""The weights: a hundredth of such an update is next to nothing."""


def try_causes(inquiry: Investigation, *, contenders: int = CONTENDERS, most: int = MAX_EXPERIMENTS) -> None:
    """Put the leading causes to the test until one is proved, with `most` experiments in all.

    Not on a model that is held in parts on several ranks: an arm that exchanges weights does not reach them; nor where
    the loop's own code, which is not run again, made the gradients bad.
    """
    if inquiry.model is None or inquiry.capture.runnable is not None or inquiry.group.split or inquiry.edited:
        return
    with inquiry.timed("prove"):
        _try_causes(inquiry, contenders, most)


def _try_causes(inquiry: Investigation, contenders: int, most: int) -> None:
    try:
        from finitune.diagnosis.ranking import TAKES_STEPS, experiments_of, proof_of

        def is_proved(cause: str, begin: str = "") -> bool:
            for experiment in experiments_of(cause):
                if experiment.symptom in ("", inquiry.event["symptom"]) and experiment.arm.startswith(begin):
                    _try(inquiry, cause, experiment)
            return bool(proof_of([event for event in inquiry.arms() if event["cause"] == cause]))

        for contender in inquiry.incident(contenders=contenders).causes:
            if len(inquiry.arms()) >= most or inquiry.limits.left <= 0:
                break
            if is_proved(contender.cause):
                return
        if _lies_in_last_steps(inquiry):
            any(is_proved(cause.cause, TAKES_STEPS) for cause in inquiry.incident(contenders="all").causes)
    except ImportError:  # nothing beside torch is installed here
        return
    finally:
        empty_cache(inquiry.model)


def _lies_in_last_steps(inquiry: Investigation) -> bool:
    """The captured step is finite with the weights of before the last steps, where they were kept."""
    past = inquiry.past
    if past is None or not past.steps or inquiry.limits.left <= 0:
        return False
    return outcome(inquiry, past.before) == "finite"


def _try(inquiry: Investigation, cause: str, experiment: Any) -> None:
    for spelling in _spellings(inquiry, experiment):
        if any((e["arm"], e["cause"]) == (spelling, cause) for e in inquiry.arms()):
            continue
        known = next((e for e in inquiry.arms() if e["arm"] == spelling), None)
        came_out = known["result"] if known else result(inquiry, spelling)
        if came_out is not None and not (came_out == "non-finite" and _cannot_pass(inquiry, spelling)):
            without_update = spelling.startswith(OF_THE_LAST_UPDATE) and _is_small_without(inquiry)
            inquiry.record_event(
                "arm", arm=spelling, cause=cause, expect=experiment.expect, result=came_out,
                placebo=experiment.placebo, optional=experiment.optional and not without_update,
            )  # fmt: skip


def _cannot_pass(inquiry: Investigation, spelling: str) -> bool:
    """The loss holds numbers that the loop took from bad outputs, as an advantage, and the arm leaves them there."""
    found = inquiry.origin
    if found is None or found.phase == "input" or spelling.startswith(OF_SAMPLES):
        return False
    objectives = (micro.objective for micro in inquiry.capture.micro_steps)
    held = [bad[1] for one in objectives if one is not None and (bad := one.bad_operand()) is not None]
    return any(map(is_bad_but_for_masks, held))


def _is_small_without(inquiry: Investigation) -> bool:
    """The update before was all that was ever done to the weights, and a hundredth of it leaves them what they were."""
    updates = inquiry.signals["update_ratio"]
    return inquiry.event["step"] == 2 and updates.last_step == 1 and updates.last < A_FEW_TIMES


def result(inquiry: Investigation, spelling: str) -> str | None:
    """How the step comes out: finite, non-finite, diverged (a finite loss far above the run's own), or stuck (every
    number is finite, and an update comes to nothing, where that is the symptom).

    None where the arm does not apply to this step, or where the budget is used up.
    """
    try:
        function, arguments = arm(spelling)
        return outcome(inquiry, lambda setting: function(setting, *arguments))
    except ValueError:  # no such arm
        return None


def outcome(inquiry: Investigation, change: Callable[[Setting], AbstractContextManager[None]]) -> str | None:
    """The same under any change of the step or of the model."""
    try:
        setting = inquiry.setting()
        if inquiry.event["symptom"] == "nonfinite-loss" and setting.scale > BEARABLE_SCALE:
            setting.run_scale = BEARABLE_SCALE
        again = rerun(setting, change(setting))
    except Exception:  # an arm that the model or the batch does not support proves nothing
        return None
    still = STANDS_STILL.get(inquiry.event["symptom"])
    if still is not None:  # no update, no answer
        return None if again.trial is None else "stuck" if still(again.trial, inquiry) else "finite"
    loss = sum(again.losses) / (setting.run_scale or setting.scale)
    before = inquiry.signals["loss"].window(len(inquiry.signals["loss"]))
    low = usual_low(before)
    diverges = inquiry.event["symptom"] == "divergence"
    if again.passed and low is not None and loss > low:
        # Where the incident is that the loss has climbed, half of the way up, in the logarithm, is not healed.
        climbed = math.sqrt(low * inquiry.event["loss"]) if diverges else math.inf
        far = loss > DIVERGED * low and (diverges or not is_noise(before, loss / low, each=False))
        if far or loss > climbed:
            return "diverged"
    if again.passed and diverges and _is_in_parts(inquiry, loss):
        return "diverged"
    if again.passed and diverges and not again.norms.any():
        return "diverged"  # it gives one answer to everything, and no update will change that
    return "finite" if again.passed else "non-finite"


def _is_in_parts(inquiry: Investigation, loss: float) -> bool:
    """The mean of what a model that sums over samples gives for each by itself: the same loss in other units."""
    with suppress(Exception):  # samples that cannot be told apart, a budget that is used up
        rows = sum(map(rows_of, inquiry.capture.micro_steps))
        setting = inquiry.setting()
        whole = sum(rerun(setting).losses) / setting.scale if rows > 1 else 0.0
        return math.isclose(loss * rows, whole, rel_tol=UNEVEN)
    return False


def _usual_update(inquiry: Investigation) -> float:
    """The ratio of update to weights at the present rate, from before it fell."""
    ratios, rates = inquiry.signals["update_ratio"], inquiry.signals["lr"]
    earlier = [ratio / rate for at, ratio in ratios.tail(BEFORE + IN_A_ROW)[:-IN_A_ROW] if (rate := rates.at(at)) > 0]
    return median(earlier) * rates.last if earlier else 0.0


def _spellings(inquiry: Investigation, experiment: Any) -> Iterator[str]:
    """The experiment's arm with its placeholders filled; nothing where one of them has no value here."""
    text = experiment.arm
    known = placeholders(inquiry.model, inquiry.origin, inquiry.event.get("facts"))
    if "{bad_rows}" in text or "{other_samples}" in text:
        known = {**known, **_samples_at_fault(inquiry)}
    for placeholder, value in known.items():
        if placeholder in text:
            if value is None:
                return
            text = text.replace(placeholder, value)
    yield text


def _samples_at_fault(inquiry: Investigation) -> Mapping[str, str | None]:
    """Samples that make the step non-finite, and as many others; None where no few do."""
    if inquiry.at_fault is None:
        inquiry.at_fault = ()
        with suppress(Exception):  # samples that cannot be told apart, a budget that is used up
            hints = inquiry.origin.rows if inquiry.origin and inquiry.origin.rows else ()
            inquiry.at_fault = guilty(inquiry.capture, partial(_is_finite, inquiry), hints)
    if not inquiry.at_fault:
        return {"{bad_rows}": None, "{other_samples}": None}
    others = [row for row in range(sum(map(rows_of, inquiry.capture.micro_steps))) if row not in inquiry.at_fault]
    join = lambda rows: ",".join(map(str, rows)) or None  # noqa: E731
    return {"{bad_rows}": join(inquiry.at_fault), "{other_samples}": join(others[: len(inquiry.at_fault)])}


def _is_finite(inquiry: Investigation, capture: Capture) -> bool:
    return rerun(replace(inquiry.setting(), capture=capture)).finite
