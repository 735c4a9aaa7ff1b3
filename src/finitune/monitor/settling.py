"""Overflows of a loss scale that settles: normal until proved otherwise, since the loop's own scaler skips the step."""

from __future__ import annotations

from collections.abc import Mapping

from finitune.chapter import sightings
from finitune.monitor.capture.loss_scalers import scaler_of
from finitune.monitor.capture.step import Capture
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.measurement import Reading
from finitune.monitor.probes.modules import device_of
from finitune.monitor.replay.limits import Limits, empty_cache
from finitune.monitor.replay.rerun import Setting, rerun, why_not_runnable
from finitune.monitor.run import Run
from finitune.series import Series

SETTLED_SCALE = 2.0**10
"""A finite float16 run bears a loss scale of 2**10 and more (seed incident 000: 2**13 to 2**15)."""
EDGE = 2.0
"""An overflow of the loss scale repeats at this many times its scale, and a sum over ranks at as many more; one that
does not repeat even there is none of the scaler's business."""
BY_HAND = 2.0**-16
"""What a scale that the loop multiplies the loss with, and nobody knows, may have to fall by: from 2**26 to 2**10."""
STARTS_AT = 2.0**16
"""torch.amp.GradScaler begins there; above it no scale has collapsed."""
RECHECK_SCALE = 16.0
"""A settling loss scale is looked at again each time it has fallen by this factor."""


def settles(
    watched: Watched, reading: Reading, capture: Capture, limits: Limits, *, by_hand: bool = False
) -> tuple[bool, int]:
    """Whether a somewhat lower loss scale cures this overflow, and it repeats at its own; how often the step ran.

    Where the step cannot be run again this is not known, and the step is left to the scaler. All ranks call it.
    """
    if watched.settling_from is not None and reading.scale * RECHECK_SCALE > watched.settling_from:
        return True, 0
    model, group = watched.model, watched.group
    if model is None:
        return True, 0
    setting = Setting(model=model, capture=capture, scale=reading.scale, group=group, limits=limits)

    def finite_at(scale: float) -> bool | None:
        setting.run_scale = scale
        return _is_finite(setting)

    def any_rank(condition: bool) -> bool:  # noqa: FBT001
        return group.agree(condition, device=device_of(model))[0]

    lower = finite_at(reading.scale * BY_HAND if by_hand else min(SETTLED_SCALE, reading.scale / 4))
    if any_rank(lower is False):
        watched.settling_from = None
        return False, 1
    if any_rank(lower is None):
        watched.settling_from = reading.scale
        return True, 1
    upper = finite_at(reading.scale * EDGE * group.size)
    repeats, finite = any_rank(upper is False), any_rank(upper is True)
    settled = repeats or not finite
    watched.settling_from = reading.scale if settled else None
    return settled, 2


def has_collapsed(signals: Mapping[str, Series], reading: Reading) -> bool:
    """True when the scaler has been skipping for so long that it is no settling any more."""
    if reading.scale > STARTS_AT:
        return False
    known = {name: signals[name].until(reading.step) for name in ("loss_scale", "skipped")}
    known["loss_scale"].add(reading.step, reading.scale)
    known["skipped"].add(reading.step, 1.0)
    return any(seen.symptom == "loss-scale-collapse" and seen.level != "note" for seen in sightings(known))


def is_spent(watched: Watched, reading: Reading, capture: Capture, run: Run) -> bool:
    """True where the scaler cannot or will not settle this overflow; the reading then says why. Only in mode `heal`,
    which may help it.
    """
    scaler = scaler_of(watched.optimizer(), capture) if run.mode == "heal" else None
    if scaler is not None:
        scales, skipped = run.signals["loss_scale"], run.signals["skipped"]
        reading.scaler_spent = scaler.spent(reading.scale, scales, skipped, reading.step)
    return reading.scaler_spent is not None


def _is_finite(setting: Setting) -> bool | None:
    """Is the step finite as `setting` has it? None where it cannot be run again. One extra pass."""
    try:
        return rerun(setting).passed if why_not_runnable(setting) is None else None
    except Exception:
        return None
    finally:
        empty_cache(setting.model)
