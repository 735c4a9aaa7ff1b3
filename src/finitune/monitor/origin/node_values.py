"""What an autograd node has computed that is not finite, until it is known whether the node puts it out.

Derivatives mask some of what they compute: that of a norm divides by it and leaves out where it is 0, that of a power
takes the logarithm of a base of 0 and drops it. What does not outlive the node is no fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from finitune.finding import Origin
from finitune.monitor.origin.tensor_map import TensorMap
from finitune.monitor.probes.finite import is_finite


class NodeValues:
    """Such values of the node that runs, by the operator that they come of."""

    def __init__(self) -> None:
        self._node: Any = None
        self._origins: list[Origin] = []
        self._of = TensorMap[int]()
        """The number of the origin that a value comes of."""

    def add(self, node: Any, origin: Origin, value: Tensor) -> None:
        self._node = node
        self._of.add(value, len(self._origins))
        self._origins.append(origin)

    def follow(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
        """Whether an operator within the node was given such a value; what it has made of it is one as well."""
        numbers = self._of.of(inputs)
        if not numbers:
            return False
        for each in outputs:
            self._of.add(each, min(numbers))
        return True

    def is_over(self, node: Any) -> bool:
        """Whether another node runs, or none, and there is something to ask of the last."""
        return bool(self._origins) and node is not self._node

    def put_out(self) -> Origin | None:
        """The first operator of the node of which something is left; None where it has masked everything."""
        # Let go of first: what looks at a value may be seen by the watch that asks.
        origins, of = self._origins, self._of
        self._origins, self._of, self._node = [], TensorMap[int](), None
        left = [min(numbers) for value, numbers in of.living() if not is_finite(value)]
        return origins[min(left)] if left else None
