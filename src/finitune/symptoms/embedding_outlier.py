"""A row of the input embedding is far longer than the others.

## What it means

One token dominates what the first layer sees: a row hit by updates of its own size (a token that is in every batch),
by a bit flip, or added with another scale. In float16 it is the first to overflow.

## How it is seen

The largest row norm over the median: 1,000, or five times what it was in the measurement before, and above 10. Rows
that are used grow beside those that are not, by and by; trained embeddings are within 10.
"""

from __future__ import annotations

import math

from finitune.chapter import Sighting
from finitune.series import Series

JUMP, USUAL, HUGE = 5.0, 10.0, 1000.0


def see(embedding_outlier: Series) -> Sighting | None:
    value = embedding_outlier.last
    before = max((one for one in embedding_outlier.window(4, before=1) if math.isfinite(one)), default=math.inf)
    if not (value > HUGE or value > max(JUMP * before, USUAL)):
        return None
    return Sighting(
        step=embedding_outlier.last_step,
        text=f"a row of the embedding is {value:.3g} times as long as the median",
        confirm="the row itself: its token, and when it grew",
        numbers={"embedding_outlier": value, "before": before},
    )
