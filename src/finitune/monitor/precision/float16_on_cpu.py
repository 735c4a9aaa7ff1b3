"""Fast, faithful float16 matrix products on a CPU, for as long as a `with` block lasts.

A CPU without float16 instructions multiplies float16 matrices about 100 times slower than float32 ones. Inside
`float16_on_cpu()` the products are computed in float32 and stored in float16, which is what a tensor core does:
the sum over the inner dimension never overflows, the stored result becomes inf beyond 65504.

Linear layers, `matmul`, `einsum` and eager attention are made of the four products replaced here; fused attention
is not, so models should use `attn_implementation="eager"`. Products of other dtypes give the same bits as outside.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

HALF = torch.float16


@contextmanager
def float16_on_cpu() -> Iterator[None]:
    """Replace the CPU kernels of mm, bmm, addmm and baddbmm; the native ones are back on exit.

    The dispatcher is one per process, so the replacement is seen by all its threads. Blocks may nest and overlap.
    """
    _replacement.enter()
    try:
        yield
    finally:
        _replacement.leave()


# The out= kernels called below are not the replaced ones, so there is no recursion.


def mm(a: Tensor, b: Tensor) -> Tensor:
    shape = (a.shape[0], b.shape[1])
    if a.dtype is not HALF or b.dtype is not HALF:
        return torch.mm(a, b, out=a.new_empty(shape))
    return torch.mm(a.float(), b.float(), out=_float32(a, shape)).to(HALF)


def bmm(a: Tensor, b: Tensor) -> Tensor:
    shape = (a.shape[0], a.shape[1], b.shape[2])
    if a.dtype is not HALF or b.dtype is not HALF:
        return torch.bmm(a, b, out=a.new_empty(shape))
    return torch.bmm(a.float(), b.float(), out=_float32(a, shape)).to(HALF)


def addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    shape = (a.shape[0], b.shape[1])
    if a.dtype is not HALF or b.dtype is not HALF:
        return torch.addmm(c, a, b, beta=beta, alpha=alpha, out=a.new_empty(shape))
    out = _float32(a, shape)
    return torch.addmm(c.float(), a.float(), b.float(), beta=beta, alpha=alpha, out=out).to(HALF)


def baddbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    shape = (a.shape[0], a.shape[1], b.shape[2])
    if a.dtype is not HALF or b.dtype is not HALF:
        return torch.baddbmm(c, a, b, beta=beta, alpha=alpha, out=a.new_empty(shape))
    out = _float32(a, shape)
    return torch.baddbmm(c.float(), a.float(), b.float(), beta=beta, alpha=alpha, out=out).to(HALF)


def _float32(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)


class _Replacement:
    """The one registration of this process, counted, because torch refuses a second override of the same kernel."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._library: torch.library.Library | None = None

    def enter(self) -> None:
        with self._lock:
            self._blocks += 1
            if self._library is None:
                self._library = torch.library.Library("aten", "IMPL")
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="(?s).*Overriding a previously registered kernel")
                    for kernel in (mm, bmm, addmm, baddbmm):
                        self._library.impl(kernel.__name__, kernel, "CPU")

    def leave(self) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0 and self._library is not None:
                self._library._destroy()
                self._library = None


_replacement = _Replacement()
