"""The step of an optimizer taken once more, operator by operator, where a copy of weights and state can undo it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from typing import Any

import torch
from torch import Tensor

from finitune.finding import Origin
from finitune.monitor.origin.operator_watch import OperatorWatch
from finitune.monitor.probes.optimizers import BeforeStep
from finitune.monitor.probes.surroundings import randomness_kept
from finitune.monitor.user_code.held_sources import attributes, sources_kept


def bad_operator(
    optimizer: Any, before: BeforeStep, name: str, arguments: tuple[tuple[Any, ...], dict[str, Any]],
    gradients: Iterable[tuple[Tensor, Tensor]] | None = None,
) -> Origin | None:  # fmt: skip
    """The first operator of the update that makes something bad of finite numbers, on its way to the parameter `name`;
    None where none is seen. Weights and state are those of before the step, then and afterwards; it is taken with
    these `arguments`, and where it has changed the gradients by itself, with those `gradients`.
    """
    left = [(p, p.grad) for p, _ in gradients or ()]
    watch = OperatorWatch.of_arithmetic(goes_on=True)
    try:
        args, kwargs = arguments
        kept, printed = sources_kept(attributes(optimizer)), redirect_stdout(StringIO())  # which has been printed
        with randomness_kept(), kept, printed, watch, torch.no_grad():
            for p, gradient in gradients or ():
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
