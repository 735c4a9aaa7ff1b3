"""What bounds every step of any optimizer from now on, tensor by tensor, in the order in which it holds them.

A bound is spelled as text, so that it can be sent to other ranks, and remembers what is usual in this run. Nothing of
a bound but that is kept between steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from finitune.monitor.heal.tensor_clip import TensorClip
from finitune.monitor.probes.optimizers import parameters_of

CLIP, SHRINK = "clip", "shrink"


class Bound(Protocol):
    """`before` is called when the gradients of a step are there, those of `trained_by(optimizer)` in its order, without
    a loss scale; `after` when the step has been taken.
    """

    def before(self, optimizer: Any, gradients: Sequence[Tensor | None]) -> None: ...

    def after(self, optimizer: Any) -> None: ...


def bound_of(spelling: str) -> Bound | None:
    """A fresh bound: `clip`, or `shrink=PLACE,FACTOR` of the optimizer's parameters; None for the empty text."""
    kind, _, argument = spelling.partition("=")
    if kind == SHRINK:
        place, factor = argument.split(",")
        return Shrink(place=int(place), factor=float(factor))
    return {CLIP: Clipped}[kind]() if kind else None


class Clipped(TensorClip):
    """Gradients, tensor by tensor."""

    def before(self, optimizer: Any, gradients: Sequence[Tensor | None]) -> None:
        self.clip(gradients)

    def after(self, optimizer: Any) -> None:
        pass


@dataclass(slots=True, kw_only=True)
class Shrink:
    """The update of one tensor times `factor`: with Adam a smaller gradient would be divided away again."""

    place: int
    factor: float
    _was: Tensor | None = None

    @torch.no_grad()
    def before(self, optimizer: Any, gradients: Sequence[Tensor | None]) -> None:
        self._was = parameters_of(optimizer)[self.place].detach().clone()

    @torch.no_grad()
    def after(self, optimizer: Any) -> None:
        was, self._was = self._was, None
        if was is not None:
            weight = parameters_of(optimizer)[self.place].data
            weight.copy_(torch.lerp(was, weight, self.factor))
