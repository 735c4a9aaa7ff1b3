"""Where the non-finite elements of an activation lie in the batch: samples, positions, tokens, and whether padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from finitune.monitor.probes.finite import Places
from finitune.monitor.replay.capture import Call
from finitune.monitor.replay.padding import padding_of

MAX_PLACES = 16


def batch_places(calls: list[Call], number: int, tensor: Tensor, found: Places) -> tuple[Any, Any, Any, bool | None]:
    """Samples, positions, token ids there, and whether all of them are padding; None where not known.

    `number` counts the model's calls so far, from 1.
    """
    if not calls or not found.indices or not found.indices[0]:
        return None, None, None, None
    call = calls[min(max(number, 1), len(calls)) - 1]
    ids = call.token_ids()
    if ids is None:
        return _samples(call, tensor, found), None, None, None
    n_rows, n_positions = ids.shape
    where = {_row_and_position(index, tensor.shape, n_rows, n_positions) for index in found.indices}
    known = sorted((pair for pair in where if pair is not None), key=lambda pair: (pair[0], pair[1] or 0))
    if not known:
        vocabulary = tensor.dim() == 2 and tensor.shape[0] > int(ids.max())
        rows = sorted({index[0] for index in found.indices})[:MAX_PLACES]
        return None, None, rows if vocabulary else None, None
    rows = sorted({row for row, _ in known})
    positions = sorted({position for _, position in known if position is not None})
    tokens = sorted({int(ids[row, position]) for row, position in known if position is not None})
    mask = call.mask()
    masked = mask == 0 if isinstance(mask, Tensor) and mask.shape == ids.shape else None
    filled = padding_of(ids, mask)
    if filled is not None:
        masked = filled.where if masked is None else masked | filled.where
    padding = None
    if positions and masked is not None:
        padding = all(bool(masked[row, position]) for row, position in known if position is not None)
    return rows[:MAX_PLACES], positions[:MAX_PLACES] or None, tokens[:MAX_PLACES] or None, padding


def _samples(call: Call, tensor: Tensor, found: Places) -> list[int] | None:
    """Samples of a batch without token ids: the first axis, where it is as long as that of every input."""
    sizes = {t.shape[0] for t, _ in call.versions if t.dim()}
    if len(sizes) != 1 or tensor.dim() < 2 or tensor.shape[0] not in sizes:
        return None
    return sorted({index[0] for index in found.indices})[:MAX_PLACES]


def _row_and_position(
    index: list[int], shape: torch.Size, n_rows: int, n_positions: int
) -> tuple[int, int | None] | None:
    """Where an element of an activation lies in the batch, by the tensor's shape; None when it cannot be told."""
    if shape[0] == n_rows and len(shape) >= 2:
        if shape[1] == n_positions:
            return index[0], index[1]
        if len(shape) == 4 and shape[2] == n_positions:  # attention scores and heads: [rows, heads, positions, ...]
            return index[0], index[2]
        return (index[0], None) if len(shape) > 2 else None
    if shape[0] == n_rows * n_positions:
        return index[0] // n_positions, index[0] % n_positions
    if (
        n_rows and shape[0] % n_rows == 0 and len(shape) == 3 and shape[1] == n_positions
    ):  # [rows * heads, positions, ...]
        return index[0] // (shape[0] // n_rows), index[1]
    return None
