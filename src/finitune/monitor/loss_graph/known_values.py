"""What the nodes of a graph came to in the step, where something that took a value kept it, or a result tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from finitune.monitor.loss_graph import node_operators
from finitune.monitor.loss_graph.loss_operators import CHOOSES, GIVEN, JOINS, RESHAPES, NotReadable
from finitune.monitor.loss_graph.node_operators import name_of
from finitune.monitor.probes.graph_nodes import numbers_of_nodes

MAX_NODES = 400
MANY = f"more than {MAX_NODES} operators between model and loss"
SCALES = ("MulBackward0", "DivBackward0")
Value = Callable[[], Tensor | None]
Edge = tuple[Any, int]
"""An autograd node, and which of its outputs."""


def known_values(root: Any, outputs: set[int]) -> dict[Edge, Value]:
    """The values in the graph that ends at `root` which nodes have kept of their inputs."""
    found: dict[Edge, Value] = {}
    seen: set[Any] = set()
    ends = numbers_of_nodes(outputs)
    open_: list[Any] = [root]
    while open_ and len(seen) <= MAX_NODES:
        node = open_.pop()
        if node is None or node in seen or node._sequence_nr() in ends:
            continue
        seen.add(node)
        keeps = _keeps_inputs(node, name_of(node))
        for place, edge in enumerate(node.next_functions):
            if keeps and edge[0] is not None and edge not in found:
                found[edge] = partial(_given, node, place)
            open_.append(edge[0])
    if len(seen) > MAX_NODES:
        raise NotReadable(MANY)
    return found


def _keeps_inputs(node: Any, name: str) -> bool:
    return name in GIVEN or (name not in RESHAPES and node_operators.keeps_inputs(node))


def _given(node: Any, place: int) -> Tensor | None:
    return (*GIVEN.get(name_of(node), node_operators.given_to)(node), None)[place]


def into(node: Any, name: str, edges: Sequence[Edge], value: Value | None) -> list[Value | None]:
    """The value of each input of a node of that name, where something has kept it. None for one without a graph."""
    places = range(len(edges))
    if _keeps_inputs(node, name):
        if value is not None and name in SCALES:
            return [partial(_given_or_scaled, node, place, value) for place in places]
        return [partial(_given, node, place) for place in places]
    if name == "ReluBackward0":
        return [partial(positive, node)]
    if value is None:
        return [None] * len(edges)
    if name in JOINS:
        return [partial(_part, node, place, value) for place in places]
    if name not in CHOOSES and name not in RESHAPES and name != "NegBackward0":
        return [None] * len(edges)
    shapes = [None if child is None else child._input_metadata[output].shape for child, output in edges]
    if name in CHOOSES:
        return [value if shape == node._input_metadata[0].shape else None for shape in shapes]
    sign = -1 if name == "NegBackward0" else 1
    return [None if shape is None else partial(_carried, value, shape, sign) for shape in shapes]


def _given_or_scaled(node: Any, place: int, value: Value) -> Tensor | None:
    """What went into a product with a constant, or a division by a number; from what came out where the node kept no
    input. Where the constant is 0 any finite number is as good as what went in.
    """
    known = _given(node, place)
    constant = getattr(node, "_saved_other" if place == 0 else "_saved_self", None)
    if known is not None or constant is None:
        return known
    if isinstance(constant, Tensor) and constant.numel() != 1:
        out = value() if name_of(node) == "MulBackward0" else None
        child, output = node.next_functions[place]
        if out is None or tuple(child._input_metadata[output].shape) != out.shape:
            return None
        return torch.where(constant != 0, out / constant, out)
    factor, out = float(constant), value()
    if out is None or not factor or (place == 1 and name_of(node) == "DivBackward0"):
        return None
    return out * factor if name_of(node) == "DivBackward0" else out / factor


def _part(node: Any, place: int, value: Value) -> Tensor | None:
    """What went into a `stack` or a `cat`, of what came out of it; None beside a part of a `cat` without a graph."""
    known, dim = value(), int(node_operators.signed(node._saved_dim))
    if known is None or name_of(node) == "StackBackward0":
        return None if known is None else known.select(dim, place)
    edges = node.next_functions
    if any(child is None for child, _ in edges):
        return None
    return known.split([child._input_metadata[output].shape[dim] for child, output in edges], dim)[place]


def positive(node: Any) -> Tensor:
    """What went into a relu, where that is its result; NaN elsewhere."""
    result = node._saved_result
    return result.masked_fill(~(result > 0), torch.nan)


def _carried(value: Value, shape: Any, sign: int) -> Tensor | None:
    known = value()
    return None if known is None else sign * known.reshape(shape)
