"""What an autograd node has computed that is not finite, until it is known whether the node puts it out.

Derivatives mask some of what they compute: that of a norm divides by it and leaves out where it is 0, that of a power
takes the logarithm of a base of 0 and drops it. What does not outlive the node is no fault.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from finitune.finding import Origin
from finitune.monitor.probes.finite import is_finite


class NodeValues:
    """Such values of the node that runs, by the operator that they come of."""

    def __init__(self) -> None:
        self._node: Any = None
        self._of: list[tuple[Origin, list[weakref.ref[Tensor]]]] = []

    def add(self, node: Any, origin: Origin, value: Tensor) -> None:
        self._node = node
        self._of.append((origin, [weakref.ref(value)]))

    def follow(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
        """Whether an operator within the node was given such a value; what it has made of it is one as well."""
        for _, values in self._of:
            if any(value() is given for value in values for given in inputs):
                values += [weakref.ref(each) for each in outputs]
                return True
        return False

    def is_over(self, node: Any) -> bool:
        """Whether another node runs, or none, and there is something to ask of the last."""
        return bool(self._of) and node is not self._node

    def put_out(self) -> Origin | None:
        """The first operator of the node of which something is left; None where it has masked everything."""
        of, self._of, self._node = self._of, [], None
        return next((origin for origin, values in of if any(map(_is_left, values))), None)


def _is_left(value: weakref.ref[Tensor]) -> bool:
    tensor = value()
    return tensor is not None and not is_finite(tensor)
