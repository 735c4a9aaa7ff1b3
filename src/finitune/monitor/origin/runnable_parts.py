"""Of a step that cannot be run again as a whole: what its losses are computed of, and the micro-steps that can."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from torch import Tensor

from finitune.finding import Origin
from finitune.monitor.capture.loose_tensors import LooseTensors
from finitune.monitor.capture.step import MicroStep
from finitune.monitor.loss_graph.loss_operators import TIMES_GRADIENT
from finitune.monitor.loss_graph.objective import Place, Term
from finitune.monitor.origin.locate import locate, locate_in_calls
from finitune.monitor.probes.finite import is_finite
from finitune.monitor.replay.rerun import Setting, why_not_runnable


def locate_in_parts(
    setting: Setting, name: Callable[[Tensor], str], *, bad_loss: bool
) -> tuple[Origin | None, Place | None]:
    """The origin as `locate` gives it, and the term of the loss that it lies in; None where no part is bad, or none
    could be run. What a micro-step without a call of a model is computed of is under the names that `name` gives.
    """
    found = None
    if bad_loss:
        with suppress(Exception):  # what the model raises when it is called again
            found = locate_in_calls(setting)
    for part in _micro_steps(setting, name) if found is None else ():
        with suppress(Exception):
            located = locate(part)
            if located.origin is not None:
                return located.origin, located.term
    return found, None


def _micro_steps(setting: Setting, name: Callable[[Tensor], str]) -> Iterator[Setting]:
    """Those that can be run again, each as a step of its own, in the order in which they ran; where a bad gradient was
    given to one, also those that other optimizers have yet to step on.
    """
    micro_steps = setting.capture.micro_steps
    if any(micro.given is not None and not is_finite(micro.given.tensor) for micro in micro_steps):
        micro_steps = setting.capture.waiting or micro_steps
    is_whole = len(micro_steps) == 1 and micro_steps[0].derived is None  # which cannot be run again
    for micro in map(_as_loss, micro_steps) if not is_whole else ():
        capture = replace(setting.capture, micro_steps=[micro])
        model = setting.model if micro.calls else LooseTensors.of(capture, name)
        if model is not None:
            part = replace(setting, capture=capture, model=model, of_inputs=True)
            if why_not_runnable(part) is None:
                yield part


def _as_loss(micro: MicroStep) -> MicroStep:
    """Where its backward was given a finite gradient: with a loss of the same derivative."""
    if micro.derived is None or micro.given is None or not is_finite(gradient := micro.given.tensor):
        return micro
    loss = Term(name=TIMES_GRADIENT, kept={"gradient": gradient}, inputs=(micro.derived.whole,))
    return replace(micro, objective=replace(micro.derived, whole=loss), root=gradient.new_zeros(()))
