"""The nodes of an autograd graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor


def nodes_behind(roots: Iterable[Tensor]) -> Iterator[Any]:
    """Every node that a backward from `roots` would run, once."""
    seen = set[Any]()
    waiting: list[Any] = [root.grad_fn for root in roots]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [child for child, _ in node.next_functions]
