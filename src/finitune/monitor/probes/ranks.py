"""Ranks decide together: one small reduction, in which every rank takes part.

A model that is spread over ranks (FSDP2, tensor parallel: its tensors are DTensors; ZeRO 3: its parameters are empty
and carry a `ds_tensor`) is measured shard by shard, so what one rank sees is only a part of the whole. Whatever runs
such a model must be called by every rank alike.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


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


def wait_for_all() -> None:
    """Go on when every rank has come here."""
    _reduced((0.0,), "MAX")


def _reduced(values: Sequence[float], operation: str) -> list[float]:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized() or distributed.get_world_size() == 1:
        return list(values)
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    shared = torch.tensor(values, dtype=torch.float64, device=device)
    distributed.all_reduce(shared, getattr(distributed.ReduceOp, operation))
    return shared.tolist()


def is_spread(tensors: Sequence[Tensor]) -> bool:
    """True when some of these tensors are held in parts."""
    return any(hasattr(tensor, "to_local") or hasattr(tensor, "ds_tensor") for tensor in tensors)


def local(tensor: Tensor) -> Tensor:
    """The shard that this rank holds; a tensor that is not spread as it is."""
    spread: Any = tensor
    return spread.to_local() if hasattr(tensor, "to_local") else getattr(tensor, "ds_tensor", tensor)


def whole(tensor: Tensor) -> Tensor:
    """All of it, gathered; a tensor that is not spread as it is. Every rank must take part."""
    spread: Any = tensor
    if hasattr(tensor, "ds_tensor"):
        with sys.modules["deepspeed"].zero.GatheredParameters([tensor]):
            return tensor.detach().clone()
    return spread.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def copies(tensor: Tensor) -> float:
    """How many ranks hold the same numbers as this rank: all of them for an ordinary tensor."""
    world = rank_and_world()[1]
    if not hasattr(tensor, "to_local"):
        return world
    spread: Any = tensor
    mesh = spread.device_mesh
    sharded = [mesh.size(place) for place, how in enumerate(spread.placements) if not how.is_replicate()]
    return world / math.prod(sharded)
