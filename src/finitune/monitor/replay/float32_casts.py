"""Casts to float16 that the program's own code spells, such as `x.half()`, while a step is run in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Float32Casts(TorchDispatchMode):
    """What is cast to float16 is cast to float32 instead."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if func is torch.ops.aten._to_copy.default and given.get("dtype") is torch.float16:
            given["dtype"] = torch.float32
        return func(*args, **given)
