"""Gradients that carry a loss scale, and the GradScaler that keeps it, where a step is taken again or after all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from finitune.monitor.capture.loss_scalers import verdicts
from finitune.monitor.capture.step import Capture
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.measurement import Unclipped


def why_not_unscaled(capture: Capture, clip: Unclipped | None) -> str | None:
    """Why the scale cannot be taken off as the loop does it; None where it can, or where there is none."""
    if len({micro.scale is None for micro in capture.micro_steps}) > 1:
        return "some losses of the step are scaled and others are not"
    if clip is not None and clip.scaled:
        return "the loop clips gradients that still carry the loss scale"
    return None


def unscaled(gradient: Tensor, scale: float) -> Tensor:
    """Without the loss scale, in float32 at least where there is one."""
    if scale == 1.0:
        return gradient
    return (gradient.float() if gradient.dtype is torch.float16 else gradient) / scale


@contextmanager
def without_scale(optimizer: Any, gradients: Sequence[Tensor | None]) -> Iterator[None]:
    """Gradients whose scale a fused kernel will take off, without it for a while, in place."""
    scale = getattr(optimizer, "grad_scale", None)
    if scale is None:
        yield
        return
    held = [gradient for gradient in gradients if gradient is not None]
    for gradient in held:
        gradient.div_(scale.reshape(()))
    yield
    for gradient in held:
        gradient.mul_(scale.reshape(()))


def may_forget_overflow(watched: Watched, capture: Capture) -> bool:
    """Whether each GradScaler of the step has a verdict on it that can be taken back."""
    return all(verdicts(scaler, watched.optimizer()) for scaler in _scalers(capture))


def forget_overflow(watched: Watched, capture: Capture) -> None:
    """The step is taken with other gradients, which are finite: no GradScaler lowers its scale for it."""
    optimizer: Any = watched.optimizer()
    handed = [flag for flag in [getattr(optimizer, "found_inf", None)] if isinstance(flag, Tensor)]
    for flag in [*handed, *(flag for scaler in _scalers(capture) for flag in verdicts(scaler, optimizer))]:
        flag.zero_()


def _scalers(capture: Capture) -> list[Any]:
    return list({id(micro.scaler): micro.scaler for micro in capture.micro_steps if micro.scaler is not None}.values())
