"""A step that comes out finite when it is run again speaks for a fault in time or hardware only where all of it was."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from finitune.monitor.probes.optimizers import parameters_of
from finitune.monitor.replay.rerun import Outcome, silences_hooks, trained_in

if TYPE_CHECKING:
    from finitune.monitor.investigation import Investigation


def why_not_repeated(inquiry: Investigation, observed: Outcome | None) -> str | None:
    """What the replay has left out, or may have; None where it was the whole step."""
    bad_loss = observed is not None and not all(map(math.isfinite, observed.losses))
    constant = any(micro.objective and micro.objective.constant for micro in inquiry.capture.micro_steps)
    if inquiry.model is not None and silences_hooks(inquiry.model):
        return "hooks on accumulated gradients are not run again, and one of them may have made it"
    if not bad_loss and _trains_elsewhere(inquiry):
        return "a part of what is trained belongs to another module, and may have made it"
    if bad_loss and constant:
        return "a term of the loss without a graph was not kept, so the step cannot be run again as it was"
    if inquiry.by_hand and not bad_loss:
        return "the loop's own code changed the gradients after the backward, and may have made it"
    if inquiry.event.get("weights_moved"):
        return "the gradients are those of other weights, which the loop has written since the backward"
    if observed is not None and not bad_loss and not inquiry.bit_for_bit:
        return "the loss did not come out the same, so something of the step is missing in the replay"
    return None


def _trains_elsewhere(inquiry: Investigation) -> bool:
    """Of what the optimizer holds, something with a gradient belongs to a module that the step did not call."""
    trained = parameters_of(inquiry.optimizer)
    covered = {id(p) for p in trained_in(inquiry.setting())} if inquiry.model is not None else set[int]()
    outside = any(p.grad is not None and id(p) not in covered for p in trained)
    return outside and len(inquiry.modules.owners(trained)) > 1
