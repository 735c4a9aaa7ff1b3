"""Names as torch spells them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.float16` -> `float16`."""
    return str(dtype).removeprefix("torch.")


def aten_name(operator: Any) -> str:
    """`aten.div_.Tensor` -> `div`: what is wrong is the same where it works in place."""
    name = operator.overloadpacket.__name__
    return name if name.endswith("__") else name.removesuffix("_")


def parameter_names(model: nn.Module) -> dict[int, str]:
    """Identity of a parameter -> its name as in `named_parameters()`."""
    return {id(p): name for name, p in model.named_parameters()}
