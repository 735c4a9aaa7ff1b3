"""Bits that go wrong in a live tensor, as on a failing chip."""

from __future__ import annotations

import torch
from torch import Tensor

_EXPONENTS = {
    torch.float32: (torch.int32, 0x7F800000),
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float16: (torch.int16, 0x7C00),
}


def with_stuck_exponent(tensor: Tensor) -> Tensor:
    """A copy in which all exponent bits of the largest element read as ones, so that it is inf or NaN."""
    integer, exponent = _EXPONENTS[tensor.dtype]
    out = tensor.detach().clone(memory_format=torch.contiguous_format)
    out.view(integer).view(-1)[out.abs().argmax()] |= exponent
    return out
