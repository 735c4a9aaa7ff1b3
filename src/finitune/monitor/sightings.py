"""The symptoms that the signals show after a step of finite numbers."""

from __future__ import annotations

from dataclasses import replace

from finitune.chapter import Sighting, sightings
from finitune.monitor.earlier_batches import is_beyond_data
from finitune.monitor.optimizers import Optimizers, Watched
from finitune.series import Signals

OWN = (
    "divergence", "loss-scale-collapse", "nonfinite-loss", "nonfinite-gradient", "nonfinite-update", "wrong-reduction",
)  # fmt: skip
"""Symptoms that the gate, or an experiment, decides."""
OF_A_LEVEL = ("divergence", "grad-norm-rise")
TURN = 16
"""Steps within which each of two that train by turns has stepped; a critic steps five times to one of its generator in
WGAN.
"""


class Sightings:
    """Of one process. The loss of a step is that of the optimizer that steps first in it."""

    def __init__(self, optimizers: Optimizers) -> None:
        self._optimizers = optimizers
        self._step, self._measured_by_others = 0, False

    def at(self, step: int, signals: Signals, watched: Watched) -> list[Sighting]:
        """Of `step`, which `watched` has just made, and of the one before, whose update is measured later. How far a
        loss is from its level is no more than noted where weights that another optimizer trains measure it: that of a
        generator rises as its critic learns.
        """
        found = [*sightings(signals, step - 1), *sightings(signals, step)]
        is_first, self._step = step != self._step, step
        if is_first:
            self._measured_by_others = watched.is_measured_by_others
        if not any(seen.symptom in OF_A_LEVEL for seen in found) or is_beyond_data(signals["loss"]):
            return found
        self._measured_by_others |= is_first and self._freezes_another(watched, step)
        if not self._measured_by_others:
            return found
        return [replace(seen, level="note") if seen.symptom in OF_A_LEVEL else seen for seen in found]

    def _freezes_another(self, watched: Watched, step: int) -> bool:
        """Weights that another optimizer trains by turns want no gradient while this one steps."""
        return any(
            one is not watched and one.last > 0 and step - one.last < TURN
            and not any(parameter.requires_grad for parameter in one.parameters())
            for one in self._optimizers
        )  # fmt: skip
