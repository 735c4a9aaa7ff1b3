"""What variables of the user's hold: tensors that are not finite, losses that are bad."""

from __future__ import annotations

import copy
from math import isnan
from numbers import Real
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from finitune.monitor.probes.finite import is_finite, places
from finitune.monitor.probes.leaves import leaves_of
from finitune.monitor.user_code import numpy_arithmetic
from finitune.monitor.user_code.torch_arithmetic import is_distribution

LOSSES = 16  # elements of a container of losses; a longer one is a history
BATCH = 1024  # elements of a container that may be a batch; a larger one is a data set, which is not walked


def bad_tensor_in(value: Any, *, minus: bool) -> Tensor | None:
    """The tensor, or the first in a container, that holds NaN or +inf; a -inf alone is a mask without `minus`.

    Arrays and lists of numbers are looked at as tensors. A single number is bad where it is NaN; an infinite one is a
    bound.
    """
    if isinstance(value, float):
        return torch.tensor(value) if isnan(value) else None
    if isinstance(value, dict | list | tuple) and len(value) > BATCH:
        return None
    leaves = leaves_of(value) if isinstance(value, Tensor | dict | list | tuple) else [value]
    if leaves and all(isinstance(leaf, Real) for leaf in leaves):
        leaves = [torch.tensor([float(leaf) for leaf in leaves])]
    for leaf in leaves:
        tensor = torch.as_tensor(leaf).clone() if numpy_arithmetic.is_array(leaf) else leaf
        if isinstance(tensor, Tensor) and not is_finite(tensor):
            found = places(tensor, limit=0)
            if minus or found.nan or found.inf or tensor.numel() == 1:
                return tensor
    return None


def has_graph(value: Any) -> bool:
    """A tensor has one, or what holds it, a distribution of torch's too."""
    leaves = leaves_of(value)
    held = [part for leaf in leaves if is_distribution(type(leaf)) for part in vars(leaf).values()]
    return any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves) or any(map(has_graph, held))


def as_leaf(value: Any) -> Any:
    """A tensor without its graph, of which a gradient can be asked; a distribution of torch's of such."""
    if is_distribution(type(value)):
        copied = copy.copy(value)
        copied.__dict__ |= {name: pytree.tree_map(as_leaf, part) for name, part in vars(value).items()}
        return copied
    return value.detach().requires_grad_() if isinstance(value, Tensor) and value.requires_grad else value


def holds_any(value: Any, tensors: list[Tensor], depth: int = 2) -> bool:
    """It is one of the tensors, or a small container of them."""
    if isinstance(value, dict | list | tuple) and tensors and depth and len(value) <= BATCH:
        inner = list(value.values()) if isinstance(value, dict) else value
        return any(holds_any(each, tensors, depth - 1) for each in inner)
    return any(value is tensor for tensor in tensors)


def holds_bad_loss(value: Any) -> bool:
    """It is one, or a container of several."""
    if isinstance(value, dict | list | tuple):
        return len(value) <= LOSSES and any(map(_is_bad_loss, value.values() if isinstance(value, dict) else value))
    return _is_bad_loss(value)


def _is_bad_loss(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and value.numel() == 1 and not is_finite(value)
