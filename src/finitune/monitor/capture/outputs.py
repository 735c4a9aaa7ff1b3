"""The tensors of what a model puts out, of any class."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils import _pytree as pytree

from finitune.monitor.probes.leaves import leaves_of


def output_tensors(output: Any) -> list[Tensor]:
    """The tensors of a model's output, flattened in a fixed order: in containers, dataclasses and attributes of any
    object.
    """
    return list(_tensors_in(output, 4))


def _tensors_in(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif hasattr(value, "to_tuple"):
        yield from _tensors_in(value.to_tuple(), depth)
    elif isinstance(value, dict | list | tuple) or pytree._get_node_type(value) in pytree.SUPPORTED_NODES:
        leaves = leaves_of(value, is_leaf=lambda leaf: leaf is not value and hasattr(leaf, "to_tuple"))
        for leaf in leaves:
            if leaf is not value:
                yield from _tensors_in(leaf, depth - 1 if not isinstance(leaf, Tensor) else depth)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
        for each in vars(value).values():
            if isinstance(each, Tensor | dict | list | tuple | Distribution) or dataclasses.is_dataclass(each):
                yield from _tensors_in(each, depth - 1)
