"""The symptoms that the signals show after a step of finite numbers."""

from __future__ import annotations

from dataclasses import replace

from finitune.chapter import Sighting, sightings
from finitune.monitor.earlier_batches import is_beyond_data
from finitune.monitor.optimizers import Watched
from finitune.series import Signals

OWN = (
    "divergence", "loss-scale-collapse", "nonfinite-loss", "nonfinite-gradient", "nonfinite-update", "wrong-reduction",
)  # fmt: skip
"""Symptoms that the gate, or an experiment, decides."""
OF_A_LEVEL = ("divergence", "grad-norm-rise")


class Sightings:
    """Of one process. The loss of a step is that of the optimizer that steps first in it."""

    def __init__(self) -> None:
        self._step = 0
        self._measured_by_others = False

    def at(self, step: int, signals: Signals, watched: Watched) -> list[Sighting]:
        """Of `step`, which `watched` has just made, and of the one before, whose update is measured later. How far a
        loss is from its level is no more than noted where weights that another optimizer trains measure it: that of a
        generator rises as its critic learns.
        """
        if step != self._step:
            self._step, self._measured_by_others = step, watched.is_measured_by_others
        found = [*sightings(signals, step - 1), *sightings(signals, step)]
        if not self._measured_by_others or is_beyond_data(signals["loss"]):
            return found
        return [replace(seen, level="note") if seen.symptom in OF_A_LEVEL else seen for seen in found]
