"""How far a value lies from the values before it, by statistics that outliers do not move.

Nothing here needs numpy, and nothing keeps a state: what an outlier among the earlier values may count is bounded each
time anew. Callers leave out what is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from finitune.series import Series

KNOWN = 48
"""Values before which no tail is drawn: five of them make its tenth."""
HEAD, AT_ONCE = 16, 3.0
BLOCK = 32
TAIL = 0.1
ADMITTED = 1e-3
"""A value rarer than this counts as one that is just so rare, so that a spike cannot widen the tail it is judged by."""
LONG, SIMILAR = 512, 0.9
NORMAL = 1.4826
"""Standard deviations in a median absolute deviation of normal values."""


def finite(values: Iterable[float]) -> list[float]:
    """The values that are numbers, in their order."""
    return [value for value in values if math.isfinite(value)]


def median(values: Iterable[float]) -> float:
    """The upper median; NaN of none."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else math.nan


def deviation(values: Sequence[float]) -> float:
    """The standard deviation, from the median absolute deviation."""
    middle = median(values)
    return NORMAL * median(abs(value - middle) for value in values)


def lower_quartile(values: Sequence[float]) -> float:
    """The value below which a quarter of them lies; 0 of none."""
    return sorted(values)[len(values) // 4] if values else 0.0


def beginning(series: Series) -> list[float]:
    """The values of the first `HEAD` steps of the run that are numbers."""
    return finite(series.head(HEAD))


def level_at_beginning(series: Series) -> float:
    """The lower quartile of the first `HEAD` values, or of the first four where that is `AT_ONCE` times as high: from
    there they have fallen at once, as of a regression whose targets are far from zero.
    """
    head = beginning(series)
    level, first = lower_quartile(head), lower_quartile(head[:4])
    return first if first > AT_ONCE * level else level


def highest_cusum(deviations: Iterable[float], *, drift: float, clip: float) -> float:
    """The largest sum that deviations upwards reach, each clipped to +-`clip` and less `drift` (Page 1954, "Continuous
    Inspection Schemes").
    """
    highest = total = 0.0
    for one in deviations:
        total = max(0.0, total + min(max(one, -clip), clip) - drift)
        highest = max(highest, total)
    return highest


def levels_held(series: Series, steps: int) -> Iterator[float]:
    """What it has held for so many steps, at distances from its end and from its beginning that quadruple."""
    back = steps
    while back + steps <= len(series):
        for before in (back, len(series) - back - steps):
            block = finite(series.window(steps, before=before))
            if len(block) == steps:
                yield median(block)
        back *= 4


def share_of_beginning(series: Series, step: int) -> float:
    """The value at `step` over the median of the beginning; NaN where there is none."""
    begin = median(beginning(series))
    return series.at(step) / begin if begin else math.nan


def is_new(series: Series, value: float, back: int = 0) -> bool:
    """Have the 512 steps before at most one value of that size, and are there 256 of them?

    A spike that comes again and again (a loss that is added in every hundredth step) is part of the run.
    """
    before = series.window(LONG, before=back + 1)
    return len(before) >= LONG // 2 and sum(SIMILAR * value <= one < math.inf for one in before) <= 1


def chance_above(value: float, before: Sequence[float], least_scale: float) -> float:
    """The chance that a value like those before is as large as `value`; 1 in the bulk, and while few are known.

    Peaks over threshold with an exponential tail. In logarithms of a heavy-tailed quantity this is Hill's estimator,
    which holds for the tails of gradient norms where a number of deviations does not. Values count as differences from
    the median of their `BLOCK`, `value` from that of the newest, so that a falling loss does not hide what is high for
    its time. The tail begins at the 0.9 quantile; its scale is the mean excess, at least `least_scale`, and at least
    half of what the median says of it.
    """
    if len(before) < KNOWN:
        return 1.0
    now, differences = math.nan, list[float]()
    for stop in range(len(before), BLOCK // 2 - 1, -BLOCK):
        block = before[max(stop - BLOCK, 0) : stop]
        middle = median(block)
        now = value - middle if math.isnan(now) else now
        differences += (one - middle for one in block)
    differences.sort()
    start = int((1 - TAIL) * len(differences))
    threshold, middle = differences[start], differences[len(differences) // 2]
    if now <= threshold:
        return 1.0
    excesses = [one - threshold for one in differences[start:]]
    least = max(least_scale, (threshold - middle) / (2 * math.log(0.5 / TAIL)))
    most = math.log(TAIL / ADMITTED) * max(excesses[len(excesses) // 2] / math.log(2), least)
    scale = max(fmean(min(excess, most) for excess in excesses), least)
    return TAIL * math.exp(-(now - threshold) / scale)


def is_of_stages(values: Sequence[float], low: float, high: float) -> bool:
    """Whether the last value is above `high`, as one before was that came back to `low`, and got there in one step: to
    half of what followed, or more.
    """
    last = max((n for n, value in enumerate(values) if value <= high), default=-1) + 1
    earlier = values[: max((n for n, value in enumerate(values[:last]) if value <= low), default=0)]
    return last < len(values) and max(earlier, default=low) > high and 2 * values[last] > max(values[last:])


def parts_swing(values: Sequence[float], parts: int, *, least: float) -> list[float]:
    """How far the values swing to both sides of zero in each of so many parts of the same length, the last of which
    ends with them; `least` where that is less.
    """
    size = len(values) // parts
    each = [values[len(values) - n * size :][:size] for n in range(parts, 0, -1)]
    return [max(least, min(max(part), -min(part))) for part in each]


def moves_on(away: Sequence[float]) -> bool:
    """Whether what has moved away still does: of its four parts the last is twice as far as the second, and a quarter
    further than the third. It takes eight values or more.
    """
    part = len(away) // 4
    second, third, last = (median(away[n * part : (n + 1) * part]) for n in (1, 2, 3))
    return last > 2 * second and last > 1.25 * third
