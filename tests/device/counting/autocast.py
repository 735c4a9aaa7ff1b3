"""What torch.autocast casts on CUDA, cast on the device."""

from __future__ import annotations

import functools
from typing import Any

import torch
from tests.device.counting.device import NAME, is_ours
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

LOWER = (
    "matmul", "mm", "mv", "bmm", "addmm", "addmv", "addbmm", "baddbmm", "linear", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input", "prelu", "scaled_dot_product_attention",
)  # fmt: skip
FLOAT32 = (
    "exp", "expm1", "log", "log10", "log2", "log1p", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "prod",
    "reciprocal", "rsqrt", "softplus", "sum", "sum.dim_IntList", "cumsum", "cumprod", "norm.Scalar",
    "norm.ScalarOpt_dim", "layer_norm", "group_norm", "softmax.int", "log_softmax.int", "cross_entropy_loss",
    "nll_loss", "nll_loss_nd", "mse_loss", "l1_loss", "smooth_l1_loss", "kl_div", "cosine_embedding_loss",
    "binary_cross_entropy_with_logits", "cosine_similarity",
)  # fmt: skip
WIDEST = ("addcdiv", "addcmul", "cat", "stack", "dot", "index_put", "scatter_add")


def emulate_autocast(library: torch.library.Library) -> None:
    """The three lists of torch's documentation; weights that were cast are not kept for the next use."""
    for names, kernel in ((LOWER, _lower), (FLOAT32, _float32), (WIDEST, _widest)):
        for name in names:
            packet, _, overload = name.partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, functools.partial(kernel, op), "AutocastPrivateUse1")


def _lower(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    return _cast(op, torch.get_autocast_dtype(NAME), args, kwargs)


def _float32(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    return _cast(op, torch.float32, args, kwargs)


def _widest(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    present = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
    return _cast(op, torch.float32 if torch.float32 in present else torch.get_autocast_dtype(NAME), args, kwargs)


def _cast(op: Any, dtype: torch.dtype, args: Any, kwargs: Any) -> Any:
    def cast(tensor: Tensor) -> Tensor:
        eligible = tensor.is_floating_point() and tensor.dtype != torch.float64 and is_ours(tensor)
        return tensor.to(dtype) if eligible else tensor

    with torch._C._ExcludeDispatchKeyGuard(_KEY):
        args, kwargs = tree_map_only(Tensor, cast, (args, kwargs))
        return op(*args, **kwargs)
