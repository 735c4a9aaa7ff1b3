"""The symptoms that the signals show after a step of finite numbers."""

from __future__ import annotations

from dataclasses import replace

from finitune.chapter import Sighting, sightings
from finitune.monitor.earlier_batches import is_beyond_data
from finitune.monitor.optimizers import Optimizers, Watched
from finitune.monitor.run import Run
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
    """Of one process. The loss of a step is that of the optimizer that steps first in it; of another, with a loss of
    its own, is seen whether that diverges.
    """

    def __init__(self, optimizers: Optimizers, run: Run) -> None:
        self._optimizers, self._run = optimizers, run
        self._step, self._measured_by_others = 0, False

    def at(self, step: int, signals: Signals, watched: Watched) -> list[Sighting]:
        """Of `step`, which `watched` has just made, and of the one before, whose update is measured later."""
        loss, of_first = signals["loss"], self._run.signals
        has_own = self._run.signals_of(watched.name, step) is not of_first
        judged = signals if not has_own else {name: series for name, series in signals.items() if name != "loss"}
        found = [*sightings(judged, step - 1), *sightings(judged, step)]
        is_first, self._step = step != self._step, step
        if is_first:
            self._measured_by_others = watched.is_measured_by_others
        of_level = any(seen.symptom in OF_A_LEVEL for seen in found)
        if of_level and not is_beyond_data(of_first["loss"] if has_own else loss):
            self._measured_by_others |= is_first and self._freezes_another(watched, step)
            found = _noted(found) if self._measured_by_others else found
        if not has_own:
            return found
        own = [seen for seen in sightings({"loss": loss}, step) if seen.symptom == "divergence"]
        if own and not is_beyond_data(loss):
            measured = watched.is_measured_by_others or self._freezes_another(watched, step)
            own = _noted(own) if measured else own
        return [*found, *own]

    def _freezes_another(self, watched: Watched, step: int) -> bool:
        """Weights that another optimizer trains by turns want no gradient while this one steps."""
        return any(
            one is not watched and one.last > 0 and step - one.last < TURN
            and not any(parameter.requires_grad for parameter in one.parameters())
            for one in self._optimizers
        )  # fmt: skip


def _noted(found: list[Sighting]) -> list[Sighting]:
    """How far a loss is from its level is no more than a note where weights that another optimizer trains measure it:
    that of a generator rises as its critic learns.
    """
    return [replace(seen, level="note") if seen.symptom in OF_A_LEVEL else seen for seen in found]
