"""Ranks decide together: one small reduction, in which every rank takes part."""

from __future__ import annotations

import os

import torch


def rank_and_world() -> tuple[int, int]:
    """Rank of this process and how many there are, from torch.distributed or from the launcher's environment."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def agree(*flags: bool) -> tuple[bool, ...]:
    """Each flag is True when any rank says so. Every rank must make the same calls in the same order."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return flags
    if torch.distributed.get_world_size() == 1:
        return flags
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    shared = torch.tensor(flags, dtype=torch.float32, device=device)
    torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
    return tuple(bool(flag) for flag in shared.tolist())
