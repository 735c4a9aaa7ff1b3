"""The loss as a function of the model's outputs, read off the autograd graph just before backward.

A training loop computes its loss in its own code, which cannot be called again. The graph from the loss back to
the model's outputs can: its nodes keep targets, dimensions and factors. Only those small things are kept here,
never logits. Whoever runs the result compares it with the loss that was seen, so a wrong reading is noticed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Rebuild = Callable[[dict[int, Tensor]], Tensor]
MAX_NODES = 200
_REDUCTIONS = ("none", "mean", "sum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """`rebuild(outputs)` gives the loss again; `outputs` maps the sequence number of an output's node to its new value.

    `factors` are the plain numbers that multiply a model output on its way to the loss, in the loop's own code.
    """

    rebuild: Rebuild
    factors: tuple[Tensor | float, ...]
    uses: frozenset[int]
    targets: tuple[Tensor, ...] = ()
    """Class indices that the loop's own cross entropies compare with."""
    constant: bool = False
    """A term without a graph was added, as in `total = 0; total += loss`. The graph does not keep it: taken as 0."""

    def scale(self) -> float:
        """The loss scale of a float16 loop: the product of those factors that are powers of two above one.

        Waits for the device where a factor lies on one.
        """
        values = [float(factor) for factor in self.factors]
        return math.prod(v for v in values if v > 1 and math.isfinite(v) and math.frexp(v)[0] == 0.5)


class NotReadable(Exception):
    """The graph holds a node whose constants it does not keep; the message names it."""


def read(root: Tensor, outputs: set[int]) -> Objective:
    """Read the objective whose value is `root`; `outputs` holds the sequence numbers of the model outputs' nodes.

    Raises NotReadable.
    """
    if root.grad_fn is None:
        raise NotReadable("the loss has no graph")
    walk = _Walk(outputs=outputs)
    rebuild = _read(root.grad_fn, walk)
    if not walk.uses:
        raise NotReadable("the loss does not come from the watched model")
    return Objective(
        rebuild=rebuild,
        factors=tuple(_factors(root.grad_fn, outputs)),
        uses=frozenset(walk.uses),
        targets=tuple(walk.targets),
        constant=walk.constant,
    )


def sequence_number(tensor: Tensor) -> int | None:
    """The number under which `tensor`'s node is known to `read`; None for a tensor without a graph."""
    return None if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()


@dataclass(slots=True, kw_only=True)
class _Walk:
    """What is met on the way from the loss to the model's outputs."""

    outputs: set[int]
    uses: set[int] = field(default_factory=set[int])
    targets: list[Tensor] = field(default_factory=list[Tensor])
    constant: bool = False
    nodes: int = 0


def _read(node: Any, walk: _Walk) -> Rebuild:
    number = node._sequence_nr()
    if number in walk.outputs:
        walk.uses.add(number)
        return lambda values: values[number]
    walk.nodes += 1
    if walk.nodes > MAX_NODES:
        raise NotReadable(f"more than {MAX_NODES} operators between model and loss")
    name = node.name()
    if name not in _OPERATORS:
        raise NotReadable(name)
    inputs = [None if child is None else _read(child, walk) for child, _ in node.next_functions]
    apply = _OPERATORS[name](node)
    if name in ("AddBackward0", "SubBackward0") and None in inputs:
        walk.constant = True
    if name.startswith("NllLoss"):
        walk.targets.append(node._saved_target)
    return lambda values: apply(*[None if f is None else f(values) for f in inputs])


def _factors(node: Any, outputs: set[int]) -> Iterator[Tensor | float]:
    """The plain numbers along the chain of products and quotients at the top of the graph."""
    while node is not None and node._sequence_nr() not in outputs:
        if node.name() not in ("MulBackward0", "DivBackward0"):
            return
        other = node._saved_other
        if other is None or other.numel() != 1:
            return
        if node.name() == "MulBackward0":
            yield other.clone()  # a scaler changes its scale in place
        node = node.next_functions[0][0]


def _kept(node: Any, saved: Tensor | None) -> Any:
    """A saved operand; a scalar is copied, because a scaler changes its scale in place.

    A Python number stays one: it is saved as a float64 tensor, which would promote a float16 loss beyond overflow.
    """
    if saved is None or saved.numel() != 1:
        return saved
    dtype = node._input_metadata[0].dtype
    number = saved.dim() == 0 and saved.dtype in (torch.float64, torch.int64) and dtype != saved.dtype
    return saved.item() if number and saved.device.type == "cpu" else saved.clone()


def _shape_after(node: Any) -> torch.Size:
    return torch.Size(node._input_metadata[0].shape)


def _product(node: Any) -> Callable[..., Tensor]:
    left, right = _kept(node, node._saved_self), _kept(node, node._saved_other)
    return lambda a=None, b=None: _operand(a, left) * _operand(b, right)


def _quotient(node: Any) -> Callable[..., Tensor]:
    # The saved numerator is kept only where the denominator has a graph; a plain numerator is not kept.
    other = _kept(node, node._saved_other)
    return lambda a=None, b=None: _operand(a, None) / _operand(b, other)


def _operand(rebuilt: Tensor | None, saved: Any) -> Any:
    if rebuilt is not None:
        return rebuilt
    if saved is None:
        raise NotReadable("an operand that the graph does not keep")
    return saved


def _sum_of(node: Any) -> Callable[..., Tensor]:
    alpha = node._saved_alpha
    sign = 1 if node.name().startswith("Add") else -1
    if any(child is None for child, _ in node.next_functions):
        # Gradients do not depend on it, and the usual one is the zero that a sum began with.
        return lambda a, b: a if b is None else sign * alpha * b
    return lambda a, b: a + sign * alpha * b


def _reduced(node: Any) -> Callable[..., Tensor]:
    function = torch.mean if node.name().startswith("Mean") else torch.sum
    if not node.name().endswith("1"):
        return function
    dim, keepdim = _signed(node._saved_dim), node._saved_keepdim
    return lambda x: function(x, dim=dim, keepdim=keepdim)


def _sliced(node: Any) -> Callable[..., Tensor]:
    dim, start, end, step = (
        _signed(v) for v in (node._saved_dim, node._saved_start, node._saved_end, node._saved_step)
    )
    return lambda x: torch.ops.aten.slice.Tensor(x, dim, start, end, step)


def _nll(node: Any) -> Callable[..., Tensor]:
    target, weight, ignore = node._saved_target, node._saved_weight, _signed(node._saved_ignore_index)
    reduction = _REDUCTIONS[node._saved_reduction]
    return lambda x: F.nll_loss(x, target, weight, ignore_index=ignore, reduction=reduction)


def _power(node: Any) -> Callable[..., Tensor]:
    exponent = node._saved_exponent
    return lambda x: x**exponent


def _squared(node: Any) -> Callable[..., Tensor]:
    target, reduction = node._saved_target, _REDUCTIONS[node._saved_reduction]
    return lambda x, _=None: F.mse_loss(x, target, reduction=reduction)


def _to_dtype(node: Any) -> Callable[..., Tensor]:
    dtype, device = node._input_metadata[0].dtype, node._input_metadata[0].device
    return lambda x: x.to(dtype=dtype, device=device)


def _shaped(node: Any) -> Callable[..., Tensor]:
    shape = _shape_after(node)
    return lambda x: x.reshape(shape)


def _transposed(node: Any) -> Callable[..., Tensor]:
    a, b = _signed(node._saved_dim0), _signed(node._saved_dim1)
    return lambda x: x.transpose(a, b)


def _picked(node: Any) -> Callable[..., Tensor]:
    dim, index = _signed(node._saved_dim), _signed(node._saved_index)
    return lambda x: x.select(dim, index)


def _gathered(node: Any) -> Callable[..., Tensor]:
    dim, index = _signed(node._saved_dim), node._saved_index
    return lambda x: x.gather(dim, index)


def _normalised(node: Any) -> Callable[..., Tensor]:
    dim = _signed(node._saved_dim)
    return lambda x: x.log_softmax(dim)


def _signed(value: Any) -> Any:
    """Sizes and dimensions are saved unsigned: -1 reads as 2**64 - 1."""
    if isinstance(value, tuple | list):
        return [_signed(v) for v in value]
    return value - 2**64 if isinstance(value, int) and value >= 2**63 else value


def _same(_node: Any) -> Callable[..., Tensor]:
    return lambda x: x


_OPERATORS: dict[str, Callable[[Any], Callable[..., Tensor]]] = {
    "MulBackward0": _product,
    "DivBackward0": _quotient,
    "AddBackward0": _sum_of,
    "SubBackward0": _sum_of,
    "NegBackward0": lambda _node: torch.neg,
    "MeanBackward0": _reduced,
    "MeanBackward1": _reduced,
    "SumBackward0": _reduced,
    "SumBackward1": _reduced,
    "PowBackward0": _power,
    "LogBackward0": lambda _node: torch.log,
    "ExpBackward0": lambda _node: torch.exp,
    "LogSigmoidBackward0": lambda _node: F.logsigmoid,
    "NllLossBackward0": _nll,
    "NllLoss2DBackward0": _nll,
    "LogSoftmaxBackward0": _normalised,
    "MseLossBackward0": _squared,
    "ViewBackward0": _shaped,
    "UnsafeViewBackward0": _shaped,
    "ReshapeAliasBackward0": _shaped,
    "SqueezeBackward0": _shaped,
    "SqueezeBackward1": _shaped,
    "SqueezeBackward2": _shaped,
    "UnsqueezeBackward0": _shaped,
    "TransposeBackward0": _transposed,
    "SliceBackward0": _sliced,
    "SelectBackward0": _picked,
    "GatherBackward0": _gathered,
    "ToCopyBackward0": _to_dtype,
    "CloneBackward0": _same,
}
