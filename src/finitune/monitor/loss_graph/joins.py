"""Joins of tensors of which some have no graph: the node keeps none of its parts, what takes its result may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

REST = "rest"
"""Among what is kept of a join: its result, from which the parts without a graph are cut; without it they are zeros."""


def cat(kept: Mapping[str, Any], *parts: Tensor | None) -> Tensor:
    """The parts in a row; None stands for one without a graph, of which there is one run."""
    return _joined(kept, parts, None)


def stack(kept: Mapping[str, Any], *parts: Tensor | None) -> Tensor:
    """The parts along a new axis; None stands for one without a graph."""
    return _joined(kept, [part if part is None else part.unsqueeze(kept["dim"]) for part in parts], 1)


def runs_without_graph(edges: Sequence[tuple[Any, int]]) -> int:
    """Of how many neighbouring parts of a concatenation together the size is not known by itself."""
    return sum(1 for bare, _ in groupby(edges, lambda edge: edge[0] is None) if bare)


def _joined(kept: Mapping[str, Any], parts: Sequence[Tensor | None], size: int | None) -> Tensor:
    given = [part for part in parts if part is not None]
    if len(given) == len(parts):
        return torch.cat(given, kept["dim"])
    dim, rest = kept["dim"], kept.get(REST)
    whole = given[0].new_zeros(kept["shape"]) if rest is None else rest
    filled, at = list[Tensor](), 0
    missing = size or whole.shape[dim] - sum(part.shape[dim] for part in given)
    if size is None:  # a run as a whole
        parts = [p for n, p in enumerate(parts) if p is not None or n == 0 or parts[n - 1] is not None]
    for part in parts:
        filled.append(whole.narrow(dim, at, missing) if part is None else part)
        at += filled[-1].shape[dim]
    return torch.cat(filled, dim)
