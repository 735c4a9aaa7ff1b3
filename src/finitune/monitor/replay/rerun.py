"""Run a captured step again in place and leave no trace: gradients, buffers, random numbers are put back."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from finitune.monitor.probes.finite import norms
from finitune.monitor.probes.ranks import agree, is_spread
from finitune.monitor.replay.capture import Call, Capture, MicroStep, Randomness, output_tensors
from finitune.monitor.replay.padding import Run

MAX_TRIAL_BYTES = 2 * 2**30
"""A trial update copies weights and optimizer state; beyond this it is not made."""


@dataclass(slots=True, kw_only=True)
class Setting:
    """How a step is run again; an arm changes one field or the model, for the time of one run."""

    model: nn.Module
    capture: Capture
    scale: float = 1.0
    """The loss scale of the captured step."""
    run_scale: float | None = None
    """Multiply the loss with this instead of `scale`."""
    dtype: torch.dtype | None = None
    """Compute in this dtype instead of the captured one."""
    change_inputs: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    lay_out: Callable[[Run, Any, Call], list[Tensor]] | None = None
    """Call the model with the rows of its batch laid out in another way; the outputs are as the loop wants them."""
    optimizer: Any = None
    eager: bool = False
    """Run compiled functions as they are written, so that every operator is seen."""
    update_times: float | None = None
    """Apply the optimizer's update with its learning rate times this, look at the loss, and take it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run of the step gave. `norms` has one entry per trainable parameter, in order."""

    losses: tuple[float, ...]
    norms: Tensor
    """As backward left them, so multiplied by the loss scale where it was kept."""

    losses_after: tuple[float, ...] | None = None
    """On the same batch after a trial update, where one was asked for."""
    bad_elsewhere: bool = False
    """Not finite on some rank of those that the model is spread over."""

    @property
    def sound(self) -> bool:
        """Finite, and not made worse by a trial update."""
        finite = all(map(math.isfinite, self.losses)) and bool(torch.isfinite(self.norms).all())
        return (
            finite
            and not self.bad_elsewhere
            and (self.losses_after is None or sum(self.losses_after) <= sum(self.losses))
        )


def rerun(setting: Setting, arm: AbstractContextManager[None] | None = None) -> Outcome:
    """Forward and backward of every micro-step under `arm`, gradients summed as in the real step.

    Raises whatever the model raises; the model is as it was either way. Where the model is spread over ranks, all
    of them must call this alike.
    """
    parameters = trainable(setting.model)
    with untouched(setting.model), _compiling_nothing(eager=setting.eager):
        try:
            with arm or nullcontext():  # around the step alone: what is measured of it is no part of it
                losses = tuple(_micro_step(setting, micro) for micro in setting.capture.micro_steps)
                gradients = [p.grad if p.grad is not None else p.new_zeros(()) for p in parameters]
                after = None if setting.update_times is None else _losses_after_update(setting, setting.update_times)
            outcome = Outcome(losses=losses, norms=norms(gradients).cpu(), losses_after=after)
            if is_spread(parameters):
                (bad,) = agree(not outcome.sound)
                outcome = replace(outcome, bad_elsewhere=bad)
            return outcome
        finally:
            for p in parameters:
                p.grad = None


def why_not_runnable(setting: Setting) -> str | None:
    """Why the step cannot be run again; None when it can. Asked of all ranks where the model is spread over them."""
    why = setting.capture.runnable
    if is_spread(trainable(setting.model)):
        (somewhere,) = agree(why is not None)
        return why or ("another rank cannot run its part of the step again" if somewhere else None)
    return why


def losses_of(setting: Setting) -> tuple[float, ...]:
    """Forward only, of every micro-step; wrap in `torch.no_grad()` to keep no graph."""
    with untouched(setting.model), _compiling_nothing():
        return tuple(float(_loss(setting, micro)) for micro in setting.capture.micro_steps)


def own_gradients(setting: Setting, parameters: list[nn.Parameter]) -> list[Tensor]:
    """What this rank computes in the step, summed over micro-steps; hooks of the loop, which reduce, do not run."""
    with untouched(setting.model), _compiling_nothing(), torch.enable_grad():
        each = [torch.autograd.grad(_loss(setting, micro), parameters) for micro in setting.capture.micro_steps]
        sums = list(each[0])
        for gradients in each[1:]:
            sums = [a + b for a, b in zip(sums, gradients, strict=True)]
        return sums


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def silences_hooks(model: nn.Module) -> bool:
    """True where a run of the model leaves out hooks that the real step has called; see `untouched`."""
    return any(p._post_accumulate_grad_hooks for p in model.parameters())


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Gradients set aside; afterwards gradients, buffers and random number states are as before.

    A hook on an accumulated gradient acts on the run (it reduces over ranks, or steps an optimizer), so none is called.
    """
    randomness = Randomness.now()
    parameters = list(model.parameters())
    gradients = [p.grad for p in parameters]
    buffers = [(b, b.detach().clone()) for b in model.buffers()]
    hooks = [(own, dict(own)) for p in parameters if (own := p._post_accumulate_grad_hooks)]
    for own, _ in hooks:
        own.clear()
    for p in parameters:
        p.grad = None
    try:
        yield
    finally:
        for own, kept in hooks:
            own.update(kept)
        for p, gradient in zip(parameters, gradients, strict=True):
            p.grad = gradient
        with torch.no_grad():
            for buffer, saved in buffers:
                if buffer.dtype == saved.dtype and not torch.equal(buffer, saved):
                    buffer.copy_(saved)
        torch.clear_autocast_cache()
        randomness.restore()


def _compiling_nothing(*, eager: bool = False) -> AbstractContextManager[Any]:
    """What is compiled runs compiled where it fits, the rest eagerly: the compiler would remember our way of calling,
    and refuse a function of the loop that it could not compile under watch.
    """
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager" if eager else "eager_on_recompile")


def _losses_after_update(setting: Setting, times: float) -> tuple[float, ...]:
    """Take the optimizer's step with its learning rate multiplied, and give weights and state back."""
    optimizer = setting.optimizer
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {p: dict(optimizer.state.get(p, {})) for p in parameters}
    tensors = [t for t in [*parameters, *(v for own in state.values() for v in own.values())] if isinstance(t, Tensor)]
    if hasattr(optimizer, "loss_scale") or sum(t.nbytes for t in tensors) > MAX_TRIAL_BYTES:
        raise ValueError("no trial update for an optimizer with its own loss scaler, or of this size")
    saved = [(t, t.detach().clone()) for t in tensors]
    rates = [group["lr"] for group in optimizer.param_groups]
    try:
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * times
        optimizer.step()
        with torch.no_grad():
            return tuple(float(_loss(setting, micro)) for micro in setting.capture.micro_steps)
    finally:
        with torch.no_grad():
            for tensor, copy in saved:
                tensor.copy_(copy)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for p, own in state.items():
            if own:
                optimizer.state[p].update(own)
            else:
                optimizer.state.pop(p, None)


def _micro_step(setting: Setting, micro: MicroStep) -> float:
    with torch.enable_grad():
        root = _loss(setting, micro)
        root.backward()
    return float(root.detach())


def _loss(setting: Setting, micro: MicroStep) -> Tensor:
    assert micro.objective is not None
    torch.clear_autocast_cache()
    values: dict[int, Tensor] = {}
    for call in micro.calls:
        outputs = _call(setting, call)
        values.update({number: outputs[place] for number, place in call.outputs.items()})
    # The loop's own casts are in the graph that the objective was read from, so autocast must not add its own.
    with micro.calls[-1].autocast.restored(off=True):
        root = micro.objective.rebuild(values)
        return root if setting.run_scale is None else root * (setting.run_scale / setting.scale)


def _call(setting: Setting, call: Call) -> list[Tensor]:
    call.randomness.restore()
    args, kwargs = call.args, dict(call.kwargs)
    if setting.change_inputs is not None:
        kwargs = setting.change_inputs(kwargs)
    dtype = setting.dtype
    if dtype is not None:
        args, kwargs = pytree.tree_map(lambda leaf: _cast(leaf, dtype), (args, kwargs))

    def run(given: Any) -> list[Tensor]:
        return output_tensors(call.module(*given[0], **given[1]))

    with call.autocast.restored(dtype, off=dtype is torch.float32), _autocast_within(dtype):
        given = (args, kwargs)
        return run(given) if setting.lay_out is None else setting.lay_out(run, given, call)


@contextmanager
def _autocast_within(dtype: torch.dtype | None) -> Iterator[None]:
    """Autocast that the model's own forward turns on, as accelerate has it do, is in `dtype` too; None: as it says."""
    enter = torch.autocast.__enter__
    changed: list[tuple[Any, torch.dtype | None, bool]] = []

    def entered(self: Any) -> Any:
        if self._enabled:
            changed.append((self, self.fast_dtype, self._enabled))
            self.fast_dtype, self._enabled = dtype, dtype is not torch.float32
        return enter(self)

    if dtype is not None:
        torch.autocast.__enter__ = entered
    try:
        yield
    finally:
        torch.autocast.__enter__ = enter
        for autocast, own, enabled in reversed(changed):
            autocast.fast_dtype, autocast._enabled = own, enabled


def _cast(leaf: Any, dtype: torch.dtype) -> Any:
    return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf
