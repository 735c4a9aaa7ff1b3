"""The loss climbs and stays up: training undoes what it had learned.

## What it means

The updates are too large for the curvature, the gradients are wrong, or the data changed. Only a look at an earlier
batch tells these apart, so a sighting is never more than a suspicion until the monitor has taken that look.

## How it is seen

On the logarithm of the loss; a hundredth of the level at the beginning of the run (the lower quartile of the first 16
losses, or of the first four where these are far above) is added, so that noise about zero is no climb. A CUSUM finds
the rise: median and deviation (from the MAD, at least 0.02) of the 128 steps before the last 32, increments clipped to
+-3 deviations, drift 0.75, alarm at 14 (the research prototype: no alarm in 8,900 healthy steps), and the recent median
at least a fifth above. What climbs too slowly, or has long been up, is compared with the lowest level held for 32
steps, read at distances from both ends that quadruple: twice that level, two deviations, and back at the beginning.

Other data raise the loss too, by up to three times, another language by more: a rise is a note. It is a suspicion where
three quarters of the last 32 losses are back where the run began (0.95 of it) after a loss of a quarter, or of a half
where it began by guessing (its first four are within 3 %); at three times the beginning after a loss that was a sixth
lower; else, as where a value function finds rewards, at a hundred times. Three steps in a row at 10^8 times it are
beyond any data. Early (fewer than 48 steps): three in a row above twice the median so far and above the first; a
suspicion at ten times the largest so far, at a hundred times the first 16, or, unless it comes in stages, with three
quarters of the last 8 at a hundred times the first 8, or at ten times the first four after a loss of a quarter of them,
or a sixth lower where it began by guessing. Tensors that never had a gradient begin another loss.

A loss that is negative now and then, or begins at zero, as in policy gradients, is judged on differences: three
quarters of the last 32 further from the median of the 128 before than 100 of their deviations, which are at least 0.1:
TRL's GRPO logs losses up to that size in healthy runs; or three in a row at 10^8 times the first 16. One that was
always below zero, as a density's, falls because it learns, or is annealed: there a fall counts from a hundred times
its level before. A fall that comes to a level is none; one without a bound goes on: of four parts of the last values
the last is twice as far as the second, and a quarter further than the third. One that swings about zero diverges where
its swings grow and grow, as those of two players who learn at once (Mescheder et al. 2018, "Which Training Methods for
GANs do actually Converge?"): each of four parts swings to both sides three times as far as the one before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from finitune import outliers
from finitune.chapter import Sighting
from finitune.outliers import beginning, deviation, finite, level_at_beginning, lower_quartile, median
from finitune.series import NEAR_ZERO, Series

EARLY, EARLY_RATIO, IN_A_ROW, STAYED, EARLY_FAR = 48, 2.0, 3, 8, 10.0
BASELINE, RECENT = 128, 32
FLOOR, LEAST_DEVIATION, DRIFT, ALARM, CLIP = 0.01, 0.02, 0.75, 14.0, 3.0
RISE, CLIMB, CLIMB_DEVIATIONS = 1.2, 2.0, 2.0
LOST, HALVED, QUARTERED = 0.95, 2.0, 4.0
FIRST, GUESSING = 4, 1.03
FAR, VERY_FAR, BEYOND = 3.0, 100.0, 1e8
RUNAWAY, LARGE, PARTS, SWELLS = 100.0, 0.1, 4, 3.0
CONFIRM = "the loss of an earlier batch with the weights of now: as low as it was if only the data changed"
SLOWER = "the same loss at a lower learning rate: its swings do not grow"


def see(loss: Series, trained_tensors: Series | None = None) -> Sighting | None:
    least = 2
    if trained_tensors and len(trained_tensors) > 1:
        loss, least = loss.since(trained_tensors.last_step - 1), FIRST + IN_A_ROW
    last, head = loss.last, beginning(loss)
    values = finite(loss.window(BASELINE + RECENT))
    if not math.isfinite(last) or len(head) < least:
        return None
    if head[0] < NEAR_ZERO or min(*head, *values) < 0:
        return _runaway(loss, values)
    begin = level_at_beginning(loss) or head[0]
    beyond = min(values[-IN_A_ROW:]) > BEYOND * begin
    if len(values) < EARLY:
        return _early(loss, values, beyond=beyond) if len(loss) <= BASELINE + RECENT else None
    floor = FLOOR * begin
    earlier, recent = _parted(values)
    held = lower_quartile(recent)
    stepped = _stepped(earlier, recent, floor=floor)
    if not stepped and not held > LOST * begin:
        return None
    level = min([begin, median(earlier), *outliers.levels_held(loss, RECENT)])
    if last + floor < RISE * (level + floor) or not (stepped or _climbed(level, earlier, recent, floor=floor)):
        return None
    guessing = max(head[:FIRST]) < GUESSING * min(head[:FIRST])
    lost = held > LOST * begin and begin > (HALVED if guessing else QUARTERED) * level
    far = FAR if begin > RISE * level else VERY_FAR
    return _sighting(loss, level, certain=lost or beyond or held > far * begin)


def _stepped(earlier: Sequence[float], recent: Sequence[float], *, floor: float) -> bool:
    """Has the loss left the level of the window before, by a CUSUM?"""
    if not median(recent) + floor > RISE * (median(earlier) + floor):
        return False
    logarithms = [math.log(one + floor) for one in earlier]
    middle, spread = median(logarithms), max(deviation(logarithms), LEAST_DEVIATION)
    steps = [(math.log(value + floor) - middle) / spread for value in recent]
    return outliers.highest_cusum(steps, drift=DRIFT, clip=CLIP) > ALARM


def _climbed(level: float, earlier: Sequence[float], recent: Sequence[float], *, floor: float) -> bool:
    """Is the loss up from `level` by more than it varies?"""
    rise = math.log((median(recent) + floor) / (level + floor))
    return rise >= math.log(CLIMB) and rise > CLIMB_DEVIATIONS * deviation([math.log(e + floor) for e in earlier])


def _early(loss: Series, values: Sequence[float], *, beyond: bool) -> Sighting | None:
    earlier, recent = values[:-IN_A_ROW], values[-IN_A_ROW:]
    if not earlier or not min(recent) > max(EARLY_RATIO * median(earlier), values[0]):
        return None
    first = values[:FIRST]
    fell = max(first) > (RISE if max(first) < GUESSING * min(first) else QUARTERED) * min(earlier)
    high = EARLY_FAR * max(first) if fell else VERY_FAR * max(values[:STAYED])
    stays = lower_quartile(values[-STAYED:]) > high and not outliers.is_of_stages(values, max(first), high)
    far = EARLY_FAR * max(earlier), VERY_FAR * max(beginning(loss))
    return _sighting(loss, median(earlier), certain=beyond or stays or min(recent) > min(far))


def _runaway(loss: Series, values: Sequence[float]) -> Sighting | None:
    if min(map(abs, values[-IN_A_ROW:])) > BEYOND * max(LARGE, *map(abs, beginning(loss))):
        return _sighting(loss, median(values), certain=True)
    if len(values) < EARLY:
        return None
    swings = outliers.parts_swing(values, PARTS, least=LARGE)
    if swings[-1] > RUNAWAY * swings[0] and all(after > SWELLS * before for before, after in pairwise(swings)):
        text = f"loss {loss.last:.4g}; it swings about zero, further and further: up to {swings[-1]:.4g}"
        numbers = {"loss": loss.last, "before": 0.0, "swings": swings[-1]}
        return Sighting(step=loss.last_step, text=text, level="suspicion", confirm=SLOWER, numbers=numbers)
    earlier, recent = _parted(values)
    middle = median(earlier)
    far = RUNAWAY * max(deviation(earlier), LARGE)
    learns = [max(earlier) < 0 and RUNAWAY * middle < value < middle for value in recent]
    away = [0.0 if fine else abs(value - middle) for fine, value in zip(learns, recent, strict=True)]
    if lower_quartile(away) <= far or (median(recent) < middle and not outliers.moves_on(away)):
        return None
    return _sighting(loss, middle, certain=True)


def _parted(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """What was before, and the last values: at most `RECENT`, and half of them."""
    count = min(RECENT, len(values) // 2)
    return values[:-count], values[-count:]


def _sighting(loss: Series, before: float, *, certain: bool) -> Sighting:
    times = f", {loss.last / before:.2g} times its level before" if before > 0 else f" after {before:.4g}"
    return Sighting(
        step=loss.last_step,
        text=f"loss {loss.last:.4g}{times}",
        level="suspicion" if certain else "note",
        confirm=CONFIRM,
        numbers={"loss": loss.last, "before": before},
    )
