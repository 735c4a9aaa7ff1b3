"""Weights as they were when a derivative was taken by them."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from finitune.monitor.probes.finite import as_real, values_of


class Unchanged:
    """What is derived by them before they change belongs to one step."""

    def __init__(self, weights: dict[int, tuple[weakref.ref[Tensor], int, Tensor]]) -> None:
        self._weights = weights

    @staticmethod
    def of(weights: Sequence[Tensor]) -> Unchanged:
        return Unchanged({id(w): (weakref.ref(w), w._version, _sum(w)) for w in weights})

    def holds(self, weights: Sequence[Tensor], *, nan_equals: bool = True) -> bool:
        """All of `weights` are among these, and none of these has changed, as far as NaN shows."""
        return bool(self._weights) and all(id(w) in self._weights for w in weights) and all(
            (w := was()) is not None and w._version == version and torch.allclose(_sum(w), total, 0, 0, nan_equals)
            for was, version, total in self._weights.values()
        )  # fmt: skip


def _sum(weight: Tensor) -> Tensor:
    values = as_real(values_of(weight).detach())
    return values.sum(dtype=torch.float32 if values.device.type == "mps" else torch.float64)  # which knows no float64
