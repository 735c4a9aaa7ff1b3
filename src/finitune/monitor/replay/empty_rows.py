"""Rows of attention that see no key: the softmax of scores that are all -inf is 0/0."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class EmptyRows(TorchDispatchMode):
    """The softmax of such a row gives zeros; every other row keeps its bits.

    `neighbours`: of the rows that see a key the next ones are set to zero, and the empty ones left as they are.
    """

    def __init__(self, *, neighbours: bool = False) -> None:
        super().__init__()
        self._neighbours = neighbours

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten._softmax.default:
            return output
        scores: Tensor = args[0]
        empty = scores.detach().amax(args[1], keepdim=True) == -math.inf
        if self._neighbours:
            empty = empty.roll(1) & ~empty
        return output.masked_fill(empty, 0.0)
