"""Gradients of a step that several ranks take again together, averaged as in the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from finitune.monitor.probes.ranks import Group


def averaged(
    group: Group, parameters: list[Any], compute: Callable[[], Mapping[int, Tensor | None]]
) -> list[tuple[Any, Tensor]]:
    """Parameters with their gradients, averaged over `group` as DistributedDataParallel does; those of this rank where
    it is alone. A parameter without a gradient on every rank is left out.

    `compute` gives them by the identity of their parameter. What fails on one rank is raised on all: RuntimeError.
    """
    own: Mapping[int, Tensor | None] = {}
    error: Exception | None = None
    try:
        own = compute()
    except Exception as raised:
        error = raised
    device = parameters[0].device if parameters else "cpu"
    (failed,) = group.agree(error is not None, device=device)
    if error is not None:
        raise error
    if failed:
        raise RuntimeError("another rank could not run the step again")
    there = group.agree(*(own.get(id(p)) is not None for p in parameters), device=device)
    pairs = [(p, own.get(id(p))) for p, known in zip(parameters, there, strict=True) if known]
    filled = [(p, torch.zeros_like(p) if gradient is None else gradient) for p, gradient in pairs]
    return [(p, _averaged(group, gradient) if group.size > 1 else gradient) for p, gradient in filled]


def _averaged(group: Group, gradient: Tensor) -> Tensor:
    """Summed in float32 where float16 may not hold the sum."""
    wide = gradient.float() if gradient.dtype is torch.float16 else gradient
    return group.reduced(wide).div_(group.size).to(gradient.dtype)
