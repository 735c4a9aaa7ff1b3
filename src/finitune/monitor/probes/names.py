"""Names as torch spells them."""

from __future__ import annotations

import torch
from torch import nn


def dtype_name(dtype: torch.dtype) -> str:
    """`torch.float16` -> `float16`."""
    return str(dtype).removeprefix("torch.")


def parameter_names(model: nn.Module) -> dict[int, str]:
    """Identity of a parameter -> its name as in `named_parameters()`."""
    return {id(p): name for name, p in model.named_parameters()}
