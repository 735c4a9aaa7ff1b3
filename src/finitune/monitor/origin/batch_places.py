"""Where the non-finite elements of an activation lie in the batch: samples, positions, tokens, and whether padding."""

from __future__ import annotations

import torch
from torch import Tensor

from finitune.monitor.capture.step import Call
from finitune.monitor.probes.finite import Places, bad_along, values_of

MAX_ROWS, MAX_PLACES = 65_536, 1024
"""Samples that are listed; positions and tokens, each. Whether all samples are bad tells data from arithmetic."""
Listed = list[int] | None


def batch_places(
    calls: list[Call], number: int, tensor: Tensor, found: Places, *, of_loop: bool = False
) -> tuple[Listed, Listed, Listed, bool | None]:
    """Samples, positions, token ids there, and whether all of them are padding; None where not known.

    `number` counts the model's calls so far, from 1. A tensor `of_loop` is computed outside of every module: where its
    first axis is as long as the batch, that is of samples, as in a loss of each.
    """
    values = values_of(tensor).detach()
    if not calls or not found.count or not values.dim():
        return None, None, None, None
    call = calls[min(max(number, 1), len(calls)) - 1]
    ids = call.token_ids()
    if ids is None:
        return bad_rows(values) if _has_samples(values, call, of_loop=of_loop) else None, None, None, None
    there = _in_batch(values, *ids.shape)
    if there is None and of_loop and values.shape[0] == ids.shape[0]:
        there = bad_along(values, [0])
    if there is None:
        vocabulary = values.dim() == 2 and values.shape[0] > int(ids.max())
        return None, None, bad_rows(values)[:MAX_PLACES] if vocabulary else None, None
    if there.dim() == 1:
        return _listed(there), None, None, None
    tokens = ids[there.to(ids.device)].unique()[:MAX_PLACES].tolist()
    return _listed(there.any(1)), _listed(there.any(0))[:MAX_PLACES], tokens, _is_padding(there, call)


def bad_rows(values: Tensor) -> list[int]:
    """Where along its first axis a tensor holds anything that is not finite."""
    return _listed(bad_along(values, [0]))


def _listed(there: Tensor) -> list[int]:
    return torch.nonzero(there).flatten()[:MAX_ROWS].tolist()


def _has_samples(values: Tensor, call: Call, *, of_loop: bool) -> bool:
    """Without token ids: the first axis is that of samples where it is as long as that of every input."""
    sizes = {t.shape[0] for t, _ in call.versions if t.dim()}
    return len(sizes) == 1 and (of_loop or values.dim() >= 2) and values.shape[0] in sizes


def _in_batch(values: Tensor, rows: int, positions: int) -> Tensor | None:
    """Where in the batch an activation is not finite, by its shape: bool [rows, positions], or [rows] where no axis is
    that of positions; None where that is not known.
    """
    shape = values.shape
    if shape[0] == rows and len(shape) >= 2:
        if shape[1] == positions:
            return bad_along(values, [0, 1])
        if len(shape) == 4 and shape[2] == positions:  # attention scores and heads: [rows, heads, positions, ...]
            return bad_along(values, [0, 2])
        return bad_along(values, [0]) if len(shape) > 2 else None
    if shape[0] == rows * positions:
        return bad_along(values, [0]).view(rows, positions)
    if rows and shape[0] % rows == 0 and len(shape) == 3 and shape[1] == positions:  # [rows * heads, positions, ...]
        return bad_along(values, [0, 1]).view(rows, -1, positions).any(1)
    return None


def _is_padding(there: Tensor, call: Call) -> bool | None:
    """Whether every position of these, bool [rows, positions], is padding; None where no mask and no filler tells."""
    ids, mask = call.token_ids(), call.mask()
    assert ids is not None
    masked = mask == 0 if isinstance(mask, Tensor) and mask.shape == ids.shape else None
    filled = call.padding()
    if filled is not None:
        masked = filled.where if masked is None else masked | filled.where
    return None if masked is None else bool((masked | ~there.to(masked.device)).all())
