"""What a computation has made by itself: that it may write into, and into nothing that was there before."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from finitune.monitor.replay.limits import refuse_collective


class MadeHere(TorchDispatchMode):
    """Tensors that operators have made while it was active, and containers that were added. Operators that communicate
    are refused: other ranks may not compute what this one does.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._storages: set[int] = set()
        self._containers: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        refuse_collective(func)
        given = _storages((args, kwargs))
        out = func(*args, **(kwargs or {}))
        self._storages |= _storages(out) - given
        return out

    def add(self, container: Any) -> None:
        self._containers[id(container)] = container

    def owns(self, value: Any) -> bool:
        """True for a tensor, or a view of one, that was made here, and for a container that was added."""
        if not isinstance(value, Tensor):
            return self._containers.get(id(value)) is value
        return bool(storages := _storages(value)) and storages <= self._storages


def _storages(values: Any) -> set[int]:
    """Of the tensors in it that have one; a tensor within vmap has none."""
    found: set[int] = set()
    for leaf in pytree.tree_leaves(values):
        if isinstance(leaf, Tensor):
            try:
                found.add(leaf.untyped_storage()._cdata)
            except (RuntimeError, NotImplementedError):
                continue
    return found
