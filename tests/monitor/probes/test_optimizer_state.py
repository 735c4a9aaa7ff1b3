"""What an optimizer keeps beside its weights, copied and put back in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from finitune.monitor.probes.optimizer_state import StateKept


class InEightBits(Tensor):
    """A moment as codes and their scale, as in optimizers that save memory: it knows no `clone`."""

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor) -> Any:
        return Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

    def __init__(self, codes: Tensor, scale: Tensor) -> None:
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "scale"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], *_: Any) -> Any:
        return InEightBits(parts["codes"], parts["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func} of a moment in 8 bits")


def test_a_moment_of_another_class_is_kept_as_what_it_is_made_of() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    moment = InEightBits(torch.arange(4, dtype=torch.uint8), torch.tensor(0.5))
    optimizer.state[weight] = {"moment": moment}
    with pytest.raises(NotImplementedError):
        moment.clone()
    kept = StateKept(optimizer)
    moment.codes.zero_()
    moment.scale.fill_(float("nan"))
    kept.restore()
    assert optimizer.state[weight]["moment"] is moment
    assert moment.codes.tolist() == [0, 1, 2, 3]
    assert moment.scale.item() == 0.5
