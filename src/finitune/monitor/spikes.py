"""Steps that are left out because their loss or gradient norm lies far above all that the run has shown.

Only where the user asks for it: statistics alone are never certain. What counts is what `loss-spike` and
`grad-norm-spike` call suspicious; a spike that stays is the new level, and is trained on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from finitune.chapter import Sighting
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.measurement import Reading
from finitune.monitor.run import Run
from finitune.symptoms import grad_norm_spike, loss_spike

MOST_IN_A_ROW = 3
"""Steps that are left out one after another: batches that are so unlike the others do not come in longer rows."""


class Spikes:
    """Of one process. Every rank decides alike: of several, the gradient norm over all of them is judged alone."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._in_a_row: dict[int, int] = {}

    def skips(self, watched: Watched, reading: Reading) -> bool:
        """Whether the finite step of `reading` is left out; if so it is said and recorded."""
        seen = None if watched.group.size > 1 and not watched.group.known else self._seen(watched, reading)
        in_a_row = self._in_a_row.get(watched.number, 0)
        if seen is None or in_a_row >= MOST_IN_A_ROW:
            self._in_a_row[watched.number] = 0 if seen is None else in_a_row
            return False
        self._in_a_row[watched.number] = in_a_row + 1
        text = f"{seen.text}; skipped, as --skip-spikes asks for"
        self._run.recorder.event("action", step=reading.step, action="skipped-step", text=text, symptom=seen.symptom)
        self._run.speech.say(f"step {reading.step}: {text}")
        return True

    def _seen(self, watched: Watched, reading: Reading) -> Sighting | None:
        found = self._spike("grad-norm-spike", grad_norm_spike.see, "grad_norm", reading.grad_norm, reading.step)
        if found is None and watched.group.size == 1:
            found = self._spike("loss-spike", loss_spike.see, "loss", reading.loss, reading.step)
        return found

    def _spike(
        self, symptom: str, see: Callable[..., Sighting | None], signal: str, value: float, step: int
    ) -> Sighting | None:
        """What the symptom says of `value`, where that is suspicious."""
        series = self._run.signals[signal]
        if not math.isfinite(value) or (series and series.last_step >= step):
            return None  # another optimizer of the same step has recorded its own
        series.add(step, value)
        seen = see(series)
        if seen is None or seen.level != "suspicion" or seen.numbers.get(signal) != value:
            return None
        return replace(seen, symptom=symptom)
