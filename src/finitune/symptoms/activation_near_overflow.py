"""A module of a float16 run puts out values close to the largest that float16 has.

## What it means

The next larger batch or update overflows, and no loss scale helps: it acts after the forward.

## How it is seen

The largest output, against 65504: less than 1 bit of headroom is a suspicion, less than 3 bits a note. Only where the
loss is scaled, for bfloat16 has the range of float32; a peak above 65504 was not float16 either.
"""

from __future__ import annotations

import math

from finitune.chapter import Sighting
from finitune.series import Series

LARGEST = 65504.0
LITTLE, NONE = 3.0, 1.0
"""Bits."""


def see(activation_peak: Series, loss_scale: Series) -> Sighting | None:
    peak = activation_peak.last
    if not 0 < peak <= LARGEST or not loss_scale.last > 0:
        return None
    if any(LARGEST < earlier < math.inf for earlier in activation_peak.window(16)):
        return None
    bits = math.log2(LARGEST / peak)
    if bits >= LITTLE:
        return None
    return Sighting(
        step=activation_peak.last_step,
        text=f"the largest activation is {peak:.5g}, {bits:.2g} bits below the largest of float16",
        level="suspicion" if bits < NONE else "note",
        confirm="a forward of the longest batch, in float32: whether anything is above 65504",
        numbers={"activation_peak": peak, "bits": bits},
    )
