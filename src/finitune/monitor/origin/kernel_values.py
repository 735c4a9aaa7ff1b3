"""What values mean to an operator: which of its tensors are values of the model, and where a -inf is none.

What fused attention keeps for its backward is none: its logsumexp is +inf in the rows that fill up the last block of a
sequence, and -inf in a row that attends to nothing.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

PRODUCTS = (
    "mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "linear", "convolution", "native_layer_norm",
    "mkldnn_rnn_layer_backward", "_cudnn_rnn_backward", "miopen_rnn_backward",
)  # fmt: skip
"""Operators into which a -inf is no mask, but a value that should not be there."""
_KEPT = ("logsumexp", "log_sumexp")
_OUTPUT = "output"


def put_in(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments that are values."""
    if "attention" not in func.overloadpacket.__name__:
        return args, kwargs
    named = zip(func._schema.arguments, args, strict=False)
    return [value for one, value in named if not one.name.endswith(_KEPT)], kwargs


def put_out(func: Any, out: Any) -> Any:
    """What the operator has computed."""
    returns = func._schema.returns
    fused = "attention" in func.overloadpacket.__name__ and len(returns) > 1
    return out[0] if fused and returns[0].name == _OUTPUT else out


def overwritten_later(func: Any, args: Any, tensor: Tensor) -> bool:
    """In-place operators change their input, so it must be judged before they run."""
    return func._schema.is_mutable and bool(args) and args[0] is tensor


def written_down(args: Any, kwargs: Any) -> bool:
    """True when an infinity or a NaN stands in the call itself, as in `masked_fill(mask, -inf)`."""
    return any(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in pytree.tree_leaves((args, kwargs)))
