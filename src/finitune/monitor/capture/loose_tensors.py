"""Trained tensors that belong to no module, as a model: what a step computes with them can then be run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from finitune.monitor.capture.step import Capture
from finitune.monitor.loss_graph.loss_operators import WEIGHT
from finitune.monitor.loss_graph.objective import terms


class LooseTensors(nn.Module):
    """Has the tensors as they are: not copies, nor parameters of its own."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def named_parameters(self, *_args: Any, **_kwargs: Any) -> Iterator[tuple[str, Any]]:
        """Name and tensor, in the order of their use."""
        yield from self._tensors.items()

    @staticmethod
    def of(capture: Capture, name: Callable[[Tensor], str]) -> LooseTensors | None:
        """What the captured losses are computed with, under the names that `name` gives; None where that is nothing."""
        objectives = [micro.objective for micro in capture.micro_steps if micro.objective is not None]
        used = [term.kept["variable"] for one in objectives for term in terms(one.whole) if term.name == WEIGHT]
        return LooseTensors({name(tensor): tensor for tensor in used}) if used else None
