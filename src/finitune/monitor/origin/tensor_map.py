"""What is known of tensors, by the tensor itself and not by its values. No tensor is kept alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from torch import Tensor

Known = TypeVar("Known")


class TensorMap(Generic[Known]):
    """Several things may be known of a tensor. A look-up takes as long among many tensors as among few: a backward of
    the user's may run ten thousand operators.
    """

    def __init__(self) -> None:
        self._known: list[Known] = []
        self._of: dict[int, tuple[weakref.ref[Tensor], list[int]]] = {}

    def add(self, tensor: Tensor, known: Known) -> None:
        if not self.has(tensor):  # the number of one that is gone may be that of another
            self._of[id(tensor)] = weakref.ref(tensor), []
        self._of[id(tensor)][1].append(len(self._known))
        self._known.append(known)

    def has(self, tensor: Tensor) -> bool:
        return (found := self._of.get(id(tensor))) is not None and found[0]() is tensor

    def of(self, tensors: Iterable[Tensor]) -> list[Known]:
        """What is known of any of these, in the order in which it was added."""
        numbers = {number for tensor in tensors if self.has(tensor) for number in self._of[id(tensor)][1]}
        return [self._known[number] for number in sorted(numbers)]

    def living(self) -> Iterator[tuple[Tensor, list[Known]]]:
        """Each tensor that is still there, with what is known of it."""
        for reference, numbers in self._of.values():
            if (tensor := reference()) is not None:
                yield tensor, [self._known[number] for number in numbers]

    def latest(self) -> Iterator[Known]:
        """All that is known, what was added last first."""
        return reversed(self._known)

    def clear(self) -> None:
        self._known.clear()
        self._of.clear()
