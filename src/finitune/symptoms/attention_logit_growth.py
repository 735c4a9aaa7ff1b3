"""The products of queries and keys grow: attention sees one position only.

## What it means

Softmax of large scores is a choice of one, its gradient vanishes, and in float16 or with masks that are added the
scores overflow. Runs whose scores grow without bound diverge, hundreds of steps later.

## How it is seen

The largest score: 100 is the bound at which QK-Clip acts (Kimi K2), and models do train above it: a note where the
scores passed it and have grown fourfold since they were measured first. A suspicion at 10^4, where runs were seen to
diverge (arXiv 2309.14322), or at a tenfold growth between two measurements to above 10.
"""

from __future__ import annotations

import math

from finitune.chapter import Sighting
from finitune.series import Series

BOUND, DIVERGES = 100.0, 1e4
GROWN, AT_ONCE, SMALL = 4.0, 10.0, 10.0


def see(attention_logit: Series) -> Sighting | None:
    value, first = attention_logit.last, attention_logit.first
    if math.isnan(value):
        return None
    before = [one for one in attention_logit.window(4, before=1) if math.isfinite(one)]
    at_once = bool(before) and value > max(SMALL, AT_ONCE * max(before))
    large = value > DIVERGES
    if not (at_once or large or (value > BOUND and value > GROWN * first)):
        return None
    return Sighting(
        step=attention_logit.last_step,
        text=f"the largest attention score is {value:.4g}, {first:.3g} when it was measured first",
        level="suspicion" if at_once or large else "note",
        confirm="the scores head by head, and whether weights of queries and keys grow with them",
        numbers={"attention_logit": value, "first": first},
    )
