"""A model that gives one answer to everything has no gradient left: was it the updates, or is it this batch?

A run that goes far astray for a step or two may come back finite: squares overflow in a norm, 1/sqrt(inf) makes every
hidden state zero, and the loss is that of a guess.
"""

from __future__ import annotations

from dataclasses import replace

from finitune.chapter import Sighting
from finitune.monitor.capture.step import Capture
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.surroundings import randomness_kept
from finitune.monitor.replay.rerun import Setting, rerun
from finitune.series import Signals
from finitune.symptoms.zero_gradient import IN_A_ROW


@randomness_kept()
def death(watched: Watched, capture: Capture, seen: Sighting, signals: Signals) -> Sighting | None:
    """The divergence that left no gradient: weights that were kept give this batch one, those of now give none.

    Its numbers say of which step those weights are (`alive`). None where that is not known, and where it was asked
    before: `seen` repeats for as long as there is no gradient.
    """
    past, model = watched.past, watched.model
    norms = signals["grad_norm"].window(IN_A_ROW + 1)
    if past is None or not past.steps or model is None or capture.runnable is not None or watched.group.split:
        return None
    if len(norms) <= IN_A_ROW or not norms[0]:
        return None
    setting = Setting(model=model, optimizer=watched.optimizer(), capture=capture, past=past)
    try:
        before = rerun(setting, past.before(setting))
    except Exception:  # a batch that was changed since, no memory left
        return None
    if not before.finite or not before.norms.any():
        return None
    alive = past.steps[0].step - 1
    text = f"{seen.text}, and the weights of step {alive} give this batch one"
    return replace(seen, symptom="divergence", text=text, confirm="", numbers={**seen.numbers, "alive": alive})
