"""Pinned host memory: ordinary memory with a mark, so that copies to and from it are queued."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils._device import _device_constructors

_FACTORIES = ("empty", "empty_like", "empty_strided", "zeros", "zeros_like", "ones", "full", "tensor")


def is_pinned(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and hasattr(tensor.untyped_storage(), "_pinned")


def mark_pinned(tensor: Tensor) -> Tensor:
    tensor.untyped_storage()._pinned = True
    return tensor


def emulate_pinned_memory(library: torch.library.Library) -> None:
    """`pin_memory()`, `is_pinned()` and `pin_memory=True` of the factories; torch asks a C++ allocator for it."""
    library.impl("is_pinned", lambda tensor, device=None: is_pinned(tensor), "CPU")
    library.impl("_pin_memory", lambda tensor, device=None: mark_pinned(tensor.clone()), "CPU")
    _device_constructors()  # torch.device as a context remembers the factories when it is first asked
    for name in _FACTORIES:
        setattr(torch, name, _pinning(getattr(torch, name)))


def _pinning(factory: Any) -> Any:
    @functools.wraps(factory)
    def made(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        tensor = factory(*args, **kwargs)
        return mark_pinned(tensor) if pin_memory else tensor

    return made
