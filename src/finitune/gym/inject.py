"""Plant a fault in a watched run, so that users can test their own set-up (`finitune run --inject ...`).

nan, inf      one element of the module's output in that step, each time the step is run
overflow      the module's output scaled beyond the range of its dtype, each time the step is run
bitflip       one exponent bit of the gradient of the module's first parameter, once: run again, the step is finite
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from finitune.injection import Injection


class Watched(Protocol):
    """What an injection needs to know of a monitor."""

    @property
    def rank(self) -> int: ...

    @property
    def running_step(self) -> int: ...


def inject(monitor: Watched, planned: Injection, model: nn.Module, module: nn.Module) -> None:
    """Plant a fault in `module`, which is a part of `model` or all of it."""
    if planned.rank is not None and planned.rank != monitor.rank:
        return
    if planned.kind == "bitflip":
        _flip_gradient_bit(monitor, module, planned.step)
    else:
        _spoil_output(monitor, model, module, planned.step, planned.kind)


def _spoil_output(monitor: Watched, model: nn.Module, module: nn.Module, step: int, kind: str) -> None:
    training = False  # a checkpoint that re-enters runs the module without gradients, within a call that has them

    def entered(_model: nn.Module, _args: Any) -> None:
        nonlocal training
        training = torch.is_grad_enabled()

    def left(_model: nn.Module, _args: Any, _output: Any) -> None:
        nonlocal training
        training = False

    def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
        if monitor.running_step != step or not (training or torch.is_grad_enabled()):
            return None
        if isinstance(output, tuple):
            return (_spoiled(output[0], kind), *output[1:])
        return _spoiled(output, kind)

    module.register_forward_hook(hook)
    model.register_forward_pre_hook(entered)
    model.register_forward_hook(left, always_call=True)


def _spoiled(output: Tensor, kind: str) -> Tensor:
    if kind == "overflow":
        return output / output.detach().abs().amax() * torch.finfo(output.dtype).max * 4
    first = torch.zeros_like(output, dtype=torch.bool)
    first.view(-1)[0] = True
    return output.masked_fill(first, float(kind))


def _flip_gradient_bit(monitor: Watched, module: nn.Module, step: int) -> None:
    done: list[int] = []

    def hook(gradient: Tensor) -> Tensor | None:
        if monitor.running_step != step or done:
            return None
        done.append(step)
        return _with_top_exponent_bits(gradient)

    next(module.parameters()).register_hook(hook)


def _with_top_exponent_bits(gradient: Tensor) -> Tensor:
    """A copy whose first element has all exponent bits set: inf or NaN."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[gradient.element_size()]
    exponent = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80, torch.float32: 0x7F800000}[gradient.dtype]
    out = gradient.detach().clone(memory_format=torch.contiguous_format)
    out.view(-1)[:1].view(integer).bitwise_or_(exponent)
    return out
