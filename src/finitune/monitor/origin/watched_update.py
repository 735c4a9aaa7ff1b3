"""The step of an optimizer taken once more, operator by operator, where a copy of weights and state can undo it."""

from __future__ import annotations

from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING

import torch

from finitune.finding import Origin
from finitune.monitor.origin.operator_watch import OperatorWatch
from finitune.monitor.probes.optimizers import BeforeStep
from finitune.monitor.probes.surroundings import randomness_kept
from finitune.monitor.replay.limits import Limits
from finitune.monitor.user_code.held_sources import attributes, sources_kept

if TYPE_CHECKING:
    from finitune.monitor.optimizers import Watched


def bad_operator(watched: Watched, before: BeforeStep, name: str) -> Origin | None:
    """The first operator of its update that makes something bad of finite numbers, on its way to the parameter `name`;
    None where none is seen, or where it talks to other ranks. Weights and state are those of before the step, then and
    afterwards; it is taken with the same arguments, and where it has changed the gradients by itself, with those of
    before.
    """
    optimizer, gradients = watched.optimizer(), watched.first_gradients or before.gradients
    left = [(p, p.grad) for p, _ in gradients]
    watch = OperatorWatch.of_arithmetic(goes_on=True)
    try:
        args, kwargs = watched.arguments
        alone = Limits.of_the_investigation().alone(watched.group)
        kept, printed = sources_kept(attributes(optimizer)), redirect_stdout(StringIO())  # which has been printed
        with randomness_kept(), kept, printed, watch, alone, torch.no_grad():
            for p, gradient in gradients:
                p.grad = gradient
            type(optimizer).step(optimizer, *args, **kwargs)
    except Exception:  # what it computed before, as it runs a backward of its own, was computed as then
        pass
    finally:
        before.restore()
        for p, gradient in left:
            p.grad = gradient
    found = watch.found()
    return found and replace(found, module=None, tensor=name, phase="optimizer")
