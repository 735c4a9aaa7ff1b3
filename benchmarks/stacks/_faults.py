"""The eight faults by name, and where in a run they are; read by the stacks and by the table, so without torch."""

from __future__ import annotations

STEPS, BAD, SPIKE = 8, 3, 5
"""How many steps a run has, the one with the fault, and the one with the spike of `aux-nan+spike`."""

FAULTS = (
    "grad-nan", "grad+inf", "grad-inf", "grad-nan-late", "loss-nan", "labels-ignored", "aux-nan", "aux-nan+spike",
)  # fmt: skip
NAN_LOSS = ("loss-nan", "labels-ignored", "aux-nan", "aux-nan+spike")
"""The loss is NaN; in the others it is finite."""

ORIGIN = {
    "grad-nan": "down_proj", "grad+inf": "down_proj", "grad-inf": "down_proj", "loss-nan": "", "labels-ignored": "",
}  # fmt: skip
"""The faults whose operator belongs to the model or to a loss that can be run again, and how its module's name ends."""
