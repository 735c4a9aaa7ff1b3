"""The nodes of an autograd graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

OUTPUTS = 2**16
"""More than any node has: of a `split` into single elements it has one for each."""


def output_number(node: Any, output: int) -> int:
    """One number for an output of a node: of the parts of a `chunk`, or a recurrent output and its last state, the node
    is the same.
    """
    return node._sequence_nr() * OUTPUTS + output


def numbers_of_nodes(numbers: Iterable[int]) -> set[int]:
    """The sequence numbers of the nodes whose outputs have these numbers."""
    return {number // OUTPUTS for number in numbers}


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
