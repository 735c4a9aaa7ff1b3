"""What is known of tensors, by the tensor itself and not by its values. No tensor is kept alive."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from torch import Tensor

Known = TypeVar("Known")


class TensorMap(Generic[Known]):
    """Several things may be known of a tensor; what is known of a view is known of all that it is a part of, as where
    a row of a buffer is written. A look-up takes as long among many tensors as among few: a backward of the user's may
    run ten thousand operators.
    """

    def __init__(self) -> None:
        self._known: list[Known] = []
        self._numbers: dict[int, int] = {}
        self._of: dict[int, tuple[weakref.ref[Tensor], set[int]]] = {}

    def add(self, tensor: Tensor, known: Known) -> None:
        number = self._numbers.setdefault(id(known), len(self._known))
        if number == len(self._known):
            self._known.append(known)  # while it is kept here, its identity is that of no other
        for each in (tensor, tensor._base):
            if each is not None:
                if not self.has(each):  # the number of one that is gone may be that of another
                    self._of[id(each)] = weakref.ref(each), set()
                self._of[id(each)][1].add(number)

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
                yield tensor, [self._known[number] for number in sorted(numbers)]

    def latest(self) -> Iterator[Known]:
        """All that is known, what was added last first."""
        return reversed(self._known)

    def clear(self) -> None:
        self._known.clear()
        self._numbers.clear()
        self._of.clear()
