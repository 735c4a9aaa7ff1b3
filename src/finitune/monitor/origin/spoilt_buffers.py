"""A buffer that is not finite after a step: was it so before, or has the step itself spoilt it?

A running mean, a table of counts, a moving baseline is written by the forward that uses it, so that after a bad step it
is bad either way. The step is run again as if the buffer had been finite: where the same operator makes a bad value
whatever stands in the place of NaN, the step made it, and the buffer only kept it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from finitune.finding import Origin
from finitune.monitor.origin.locate import all_named_tensors, calls_of, is_written, locate
from finitune.monitor.probes.finite import is_finite
from finitune.monitor.probes.modules import Modules
from finitune.monitor.replay.rerun import Setting, why_not_runnable

STANDS_FOR_NAN = (0.0, 1.0)
"""What follows of one of them alone, as of a division by 0, would be an artefact."""


def made_by_step(known: Origin, setting: Setting, modules: Modules) -> Origin | None:
    """The operator of the step, or its input, that makes it bad although every buffer was finite. None where there is
    none, or what is `known` to be bad is no buffer, or the step cannot be run again.
    """
    names = {name for name, _ in setting.model.named_buffers()}
    names |= {modules.name(buffer) for root in modules.roots() for buffer in root.buffers()}
    if known.tensor not in names or why_not_runnable(setting) is not None or _was_bad_before(setting):
        return None
    found: list[Origin | None] = []
    for number in STANDS_FOR_NAN:
        with _finite_buffers(modules.roots(), number) as spoilt:
            found.append(locate(setting, spoilt=spoilt).origin)
    one, other = found
    if one is None or other is None or (one.op, one.line) != (other.op, other.line):
        return None
    return one if one.is_operator or is_in_some_samples(one) else None


def _was_bad_before(setting: Setting) -> bool:
    """Something that is carried from step to step, of which it is known how it stood before this one, was bad."""
    carried = (one.value for call in calls_of(setting.capture) for one in call.carried)
    return any(isinstance(value, Tensor) and not is_finite(value) for value in carried)


def may_be_of_step(known: Origin, model: nn.Module | None, modules: Modules) -> bool:
    """What is bad after the step is a buffer that steps write, which may have been finite before it."""
    return any(name == known.tensor and is_written(tensor) for name, tensor in all_named_tensors(model, modules))


def is_in_some_samples(origin: Origin) -> bool:
    """What came into the loss is bad in some samples alone; a bad buffer would have spoilt it in all of them."""
    return origin.phase == "input" and 0 < len(origin.rows or ()) < (origin.shape or [0])[0]


@contextmanager
def _finite_buffers(roots: Iterable[nn.Module], number: float) -> Iterator[list[Tensor]]:
    """Bad buffers are replaced by copies: NaN by the number, infinities by the largest number of their dtype."""
    bad = {
        (module, name): buffer
        for root in roots
        for module in root.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None and not is_finite(buffer)
    }
    try:
        for (module, name), buffer in bad.items():
            module._buffers[name] = torch.nan_to_num(buffer.detach(), nan=number)
        yield list(bad.values())
    finally:
        for (module, name), buffer in bad.items():
            module._buffers[name] = buffer
