"""Casts to float16 that the program's own code spells, such as `x.half()`, while a step is run in another type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class CastsInstead(TorchDispatchMode):
    """What is cast to float16 is cast to `dtype` instead."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype

    def __torch_dispatch__(
        self, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.ops.aten._to_copy.default and given.get("dtype") is torch.float16:
            given["dtype"] = self._dtype
        return func(*args, **given)
