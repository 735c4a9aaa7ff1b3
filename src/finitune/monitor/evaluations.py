"""A closure that an optimizer evaluates several times in one step, as LBFGS does. An evaluation that is not finite may
be a trial that a line search turns back from; where the weights are not finite after the step, it was not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from finitune.monitor.probes.measurement import Reading
from finitune.monitor.replay.capture import Capture


@dataclass(frozen=True, slots=True, kw_only=True)
class BadEvaluation:
    """The first of a step, after the one that its verdict is about."""

    reading: Reading
    capture: Capture
    weights: list[tuple[Tensor, Tensor]]
    """Parameters and copies of what they were in it."""

    @staticmethod
    def of(reading: Reading, capture: Capture, parameters: list[Any]) -> BadEvaluation:
        copies = [(p, p.detach().clone()) for p in parameters]
        return BadEvaluation(reading=reading, capture=capture, weights=copies)

    def put_weights(self) -> None:
        """The parameters are what they were in it."""
        with torch.no_grad():
            for p, copy in self.weights:
                p.copy_(copy)
