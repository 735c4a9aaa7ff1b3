"""What becomes of a bad step and of the run, and how long a falling loss scale will last, as sentences."""

from __future__ import annotations

from collections.abc import Mapping

from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.measurement import Reading
from finitune.monitor.run import Run
from finitune.series import Series
from finitune.symptoms.loss_scale_collapse import steps_left

PATIENCE = 3
"""Bad steps in a row after which a fault counts as persistent."""
RECENT_BAD = 10
"""A fault is persistent too when so many of the last 20 steps were bad."""


def consequence(run: Run, watched: Watched, reading: Reading, *, last_good: int, acted: bool) -> str:
    """`acted`: finitune has discarded the update; `last_good` is the step whose weights are left then."""
    if acted:
        return f"Update discarded; weights are those of step {last_good}."
    if reading.skipped or watched.update.skips_overflows:
        return f"The trainer skips it; weights are those of step {reading.step - 1}."
    return "Only observed, nothing was changed." if run.mode == "observe" else "It could not be discarded."


def persistence(watched: Watched) -> str | None:
    """Why a fault counts as persistent, None where it does not yet."""
    if watched.bad_in_a_row >= PATIENCE:
        return f"the fault persists ({watched.bad_in_a_row} steps in a row)"
    if sum(watched.recent) >= RECENT_BAD:
        return f"the fault persists ({sum(watched.recent)} of the last {len(watched.recent)} steps)"
    return None


def forecast(signals: Mapping[str, Series], reading: Reading) -> str:
    """How long a loss scale that falls with every bad step will last; empty where it does not fall."""
    scales = signals["loss_scale"].until(reading.step - 1)
    scales.add(reading.step, reading.scale)
    left = steps_left(scales)
    return f" Loss scale {reading.scale:g}; at this rate at its minimum in {left} steps." if left else ""
