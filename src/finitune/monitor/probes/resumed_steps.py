"""Where a resumed training stands, so that its recording goes on counting."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from finitune.series import Series

_STEPPED_WHEN_MADE = ("FP16_UnfusedOptimizer", "FP16_Optimizer")
"""DeepSpeed's, which allocate their state by one step on gradients of zero."""


def steps_before(optimizer: Any, skipped: Series) -> int:
    """The step after which this optimizer was saved; 0 for a fresh one, or one that does not count its steps.

    An optimizer counts the updates that it made. `skipped` is the series of an earlier recording, empty where there is
    none: it knows which steps were discarded in between.
    """
    state = getattr(optimizer, "state", None) or {}
    counts = [entry["step"] for entry in state.values() if isinstance(entry, dict) and "step" in entry]
    tensors = [count.detach().reshape(()).float() for count in counts if isinstance(count, Tensor)]
    numbers = [int(count) for count in counts if not isinstance(count, Tensor)]
    if tensors:  # one read, wherever they lie
        numbers.append(int(torch.stack([count.to(tensors[0].device) for count in tensors]).max()))
    taken = max(numbers, default=0)
    taken -= type(optimizer).__name__ in _STEPPED_WHEN_MADE
    if taken <= 0:
        return 0
    made = [step for step, value in skipped.pairs() if value == 0]
    return made[taken - 1] if taken <= len(made) else taken
