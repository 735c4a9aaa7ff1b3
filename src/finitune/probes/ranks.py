"""Ranks decide together: one small reduction, in which every rank takes part."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch


def rank_and_world() -> tuple[int, int]:
    """Rank of this process and how many there are, from torch.distributed or from the launcher's environment."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def agree(*flags: bool) -> tuple[bool, ...]:
    """Each flag is True when any rank says so. Every rank must make the same calls in the same order."""
    return tuple(bool(flag) for flag in _reduced(flags, "MAX"))


def total(value: float) -> float:
    """The sum over ranks. Every rank must make the same calls in the same order."""
    return _reduced((value,), "SUM")[0]


def _reduced(values: Sequence[float], operation: str) -> list[float]:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return list(values)
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    shared = torch.tensor(values, dtype=torch.float64, device=device)
    distributed.all_reduce(shared, getattr(distributed.ReduceOp, operation))
    return shared.tolist()
