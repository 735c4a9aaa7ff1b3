"""What values mean to an operator: which of its tensors are values of the model, and where a -inf is none.

What fused attention keeps for its backward is none: its logsumexp is +inf in the rows that fill up the last block of a
sequence, and -inf in a row that attends to nothing.
"""

from __future__ import annotations

from typing import Any

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


def divides_by_infinity(node: Any) -> bool:
    """Whether an infinity within the node is meant: the derivative of `logaddexp` is 1 / (1 + exp(difference))."""
    return node is not None and node.name().startswith("Logaddexp")
