"""Segments under reentrant checkpointing that no gradient enters: nothing that they are given asks for one.

Such a segment is run without being recorded, and its backward never comes: what is trained in it gets no gradient.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

DEEPEST = 4


class _Seen(threading.local):
    cut_off = 0


_seen = _Seen()


@classmethod
def counting(cls: type[CheckpointFunction], function: Any, preserve: Any, *args: Any) -> Any:
    """In the place of `CheckpointFunction.apply`, which runs a segment, and which classes made of it inherit."""
    if not torch.compiler.is_compiling() and torch.is_grad_enabled():
        with suppress(Exception):  # a function of a kind that cannot be looked into
            asks = any(isinstance(each, Tensor) and each.requires_grad for each in args)
            _seen.cut_off += not asks and any(_are_trained(module) for module in _modules(function, DEEPEST))
    return super(CheckpointFunction, cls).apply(function, preserve, *args)


def cut_off() -> int:
    """How many such segments this thread has run since it was last asked."""
    count, _seen.cut_off = _seen.cut_off, 0
    return count


def _are_trained(module: nn.Module) -> bool:
    return any(p.requires_grad for p in module.parameters())


def _modules(function: Any, depth: int) -> Iterator[nn.Module]:
    """The modules that a function may call: itself, the one whose method it is, and what it closes over."""
    if isinstance(function, nn.Module):
        yield function
    elif isinstance(function, list | tuple):
        for each in function:
            yield from _modules(each, depth)
    elif isinstance(function, functools.partial):
        yield from _modules([function.func, *function.args, *function.keywords.values()], depth)
    elif depth and callable(function):
        yield from _modules(getattr(function, "__self__", ()), depth - 1)
        for cell in getattr(function, "__closure__", None) or ():
            yield from _modules(cell.cell_contents, depth - 1)
