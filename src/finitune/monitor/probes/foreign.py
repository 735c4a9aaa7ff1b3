"""Optimizers that are none of torch's: any object with a `step` that holds the tensors which a backward reached."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from finitune.monitor.probes.gc_objects import living
from finitune.monitor.probes.graph_nodes import nodes_behind
from finitune.monitor.probes.optimizer_state import own_attributes
from finitune.monitor.probes.optimizers import BeforeStep, kept_before
from finitune.monitor.probes.references import reference_to

DEPTH = 3
"""Lists and dicts within attributes are looked through so far."""
LONGEST = 100_000
"""Elements of one list or dict that are looked through."""


def is_foreign(optimizer: Any) -> bool:
    return not isinstance(optimizer, Optimizer)


def find(leaves: Sequence[Tensor]) -> list[Any]:
    """The live objects with a method `step` that hold some of `leaves`, but for optimizers of torch and what wraps
    them, schedules and modules.
    """
    wanted = {id(leaf) for leaf in leaves}
    found: list[Any] = []
    for thing in living():
        kind = type(thing)
        if kind.__module__ in ("builtins", "functools", "types") or issubclass(kind, nn.Module | Optimizer | type):
            continue
        if callable(getattr(kind, "step", None)) and any(id(t) in wanted for t in _held(thing)):
            found.append(thing)
    return [thing for thing in found if not any(_holds(other, thing) for other in found if other is not thing)]


class LeavesUpdate:
    """An update of tensors that no optimizer of torch holds; see `finitune.monitor.probes.update.Update`."""

    engine: Any = None
    skips_overflows = False
    skipped = False
    loss_scale: float | None = None
    scaler_decides = False
    gradients_are_scaled = False
    takes_flag = False

    def __init__(self, leaves: Iterable[Tensor]) -> None:
        self.holds(leaves)

    def holds(self, leaves: Iterable[Tensor]) -> None:
        """Weakly, each once."""
        self._leaves = list({id(leaf): weakref.ref(leaf) for leaf in leaves}.values())

    def parameters(self) -> list[Any]:
        return [leaf for known in self._leaves if (leaf := known()) is not None]

    def gradients(self) -> list[tuple[Any, Tensor]]:
        return [(p, p.grad) for p in self.parameters() if p.grad is not None]


class ForeignUpdate(LeavesUpdate):
    """That of an object with a `step`. A discarded step is not called at all; where it has evaluated a closure, it is
    taken back.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = reference_to(optimizer)
        super().__init__(t for t in _held(optimizer) if t.requires_grad and t.is_leaf)

    @property
    def optimizer(self) -> Any:
        return self._optimizer()

    def discard_on_device(self, flag: Tensor) -> None:
        raise NotImplementedError("its step is not torch's")

    def withhold(self) -> None:
        pass

    def restore_gradients(self) -> None:
        pass

    def save(self, directory: Path) -> None:
        pass

    def before_step(self) -> BeforeStep | None:
        return kept_before(self.optimizer, self.parameters())


def _held(thing: Any) -> Iterator[Tensor]:
    """The tensors in the attributes of `thing`, in order."""
    groups = getattr(thing, "param_groups", None)
    values = [*([groups] if isinstance(groups, list) else ()), *own_attributes(thing).values()]
    seen: set[int] = set()
    for value in values:
        yield from _within(value, DEPTH, seen)


def _within(value: Any, depth: int, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, list | tuple | set | dict) and len(value) <= LONGEST and id(value) not in seen:
        seen.add(id(value))
        for each in _parts(value):
            yield from _within(each, depth - 1, seen)


def _parts(value: Any) -> Iterable[Any]:
    return [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)


def _holds(outer: Any, inner: Any) -> bool:
    """Of a wrapper and the optimizer within, the outer one is stepped by the loop."""
    return any(value is inner for value in (getattr(outer, "__dict__", None) or {}).values())


def leaves_of(roots: Sequence[Tensor], limit: int) -> list[Tensor]:
    """The leaves that a backward from `roots` accumulates gradients in, by a walk of at most `limit` graph nodes."""
    variables = (getattr(node, "variable", None) for node in islice(nodes_behind(roots), limit))
    return list({id(leaf): leaf for leaf in variables if isinstance(leaf, torch.Tensor)}.values())
