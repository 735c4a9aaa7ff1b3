"""What values mean to an operator: which of its tensors are values of the model, and where a -inf is none.

What fused attention keeps for its backward is none: its logsumexp is +inf in the rows that fill up the last block of a
sequence, and -inf in a row that attends to nothing. What a CTC loss keeps holds what was in memory before, beyond the
length of each sequence. The running statistics of a batch norm are none while it trains.
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
_KEEP = ("attention", "ctc_loss")
_KEPT = ("logsumexp", "log_sumexp", "log_alpha")
_OUTPUT = "output"
_RUNNING = "running_"
_TRAINS = ("training", "train", "update")
_WITHOUT = ("no_training", "no_update")


def put_in(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments that are values."""
    name = func.overloadpacket.__name__
    named = [(one.name, value) for one, value in zip(func._schema.arguments, args, strict=False)]
    if any(kernel in name for kernel in _KEEP):
        return [value for one, value in named if not one.endswith(_KEPT)], kwargs
    if "batch_norm" in name and not name.endswith(_WITHOUT) and all(value for one, value in named if one in _TRAINS):
        return [value for one, value in named if not one.startswith(_RUNNING)], kwargs
    return args, kwargs


def put_out(func: Any, out: Any) -> Any:
    """What the operator has computed."""
    name, returns = func.overloadpacket.__name__, func._schema.returns
    fused = "attention" in name and len(returns) > 1 and returns[0].name == _OUTPUT
    return out[0] if fused or name == "_ctc_loss" else out


def overwritten_later(func: Any, args: Any, tensor: Tensor) -> bool:
    """In-place operators change their input, so it must be judged before they run."""
    return func._schema.is_mutable and bool(args) and args[0] is tensor


def written_down(args: Any, kwargs: Any) -> bool:
    """True when an infinity or a NaN stands in the call itself, as in `masked_fill(mask, -inf)`."""
    return any(isinstance(leaf, float) and not math.isfinite(leaf) for leaf in pytree.tree_leaves((args, kwargs)))
