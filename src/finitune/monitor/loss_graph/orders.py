"""Operators that put values in order. Their nodes keep which element came where, and not what order was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def sort(kept: Mapping[str, Any], x: Tensor) -> Tensor:
    """Sorted as the kept indices sort it: upwards, or downwards."""
    taken = x.gather(kept["dim"], kept["indices"])
    last, first = taken.select(kept["dim"], -1), taken.select(kept["dim"], 0)
    if not torch.isfinite(taken).all():
        return taken
    return x.sort(kept["dim"], descending=bool((last - first).sum() < 0)).values


def topk(kept: Mapping[str, Any], x: Tensor) -> Tensor:
    """The largest or the smallest, whichever the kept indices point to."""
    taken = x.gather(kept["dim"], kept["indices"])
    if not torch.isfinite(taken).all():
        return taken
    largest = bool(taken.mean() >= x.mean())
    return x.topk(taken.shape[kept["dim"]], kept["dim"], largest=largest).values
