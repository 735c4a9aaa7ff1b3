"""The loss as a function of the model's outputs, read off the autograd graph just before backward.

A training loop computes its loss in its own code, which cannot be called again. The graph from the loss back to
the model's outputs can: its nodes keep targets, dimensions and factors. Only those small things are kept here,
never logits. Whoever runs the result compares it with the loss that was seen, so a wrong reading is noticed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Kept = Mapping[str, Any]
MAX_NODES = 200
_REDUCTIONS = ("none", "mean", "sum")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One operator between the model and the loss: its node's name, the constants that the node keeps, its inputs.

    Plain data, so that a capture can hold it. See `Input`.
    """

    name: str
    kept: Kept
    inputs: tuple[Input, ...]


Input = Term | int | None
"""Another term; a model output, by the sequence number of its node; None for an operand without a graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss in terms of the model's outputs; whole where the loss is an output itself.

    `factors` are the plain numbers that multiply a model output on its way to the loss, in the loop's own code.
    """

    whole: Term | int
    factors: tuple[Tensor | float, ...]
    uses: frozenset[int]
    targets: tuple[Tensor, ...] = ()
    """Class indices that the loop's own cross entropies compare with."""
    constant: bool = False
    """A term without a graph was added, as in `total = 0; total += loss`. The graph does not keep it: taken as 0."""

    def rebuild(self, outputs: Mapping[int, Tensor]) -> Tensor:
        """The loss again; `outputs` maps the sequence number of an output's node to its new value."""
        return _value(self.whole, outputs)

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
    whole = _read(root.grad_fn, walk)
    if not walk.uses:
        raise NotReadable("the loss does not come from the watched model")
    return Objective(
        whole=whole,
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


def _read(node: Any, walk: _Walk) -> Term | int:
    number = node._sequence_nr()
    if number in walk.outputs:
        walk.uses.add(number)
        return number
    walk.nodes += 1
    if walk.nodes > MAX_NODES:
        raise NotReadable(f"more than {MAX_NODES} operators between model and loss")
    name = node.name()
    if name not in _OPERATORS:
        raise NotReadable(name)
    inputs = tuple(None if child is None else _read(child, walk) for child, _ in node.next_functions)
    keep, _ = _OPERATORS[name]
    if name in ("AddBackward0", "SubBackward0") and None in inputs:
        walk.constant = True
    if name.startswith("NllLoss"):
        walk.targets.append(node._saved_target)
    return Term(name=name, kept=keep(node), inputs=inputs)


def _value(of: Input, outputs: Mapping[int, Tensor]) -> Any:
    if not isinstance(of, Term):
        return None if of is None else outputs[of]
    _, apply = _OPERATORS[of.name]
    return apply(of.kept, *[_value(each, outputs) for each in of.inputs])


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


def _operand(rebuilt: Tensor | None, saved: Any) -> Any:
    if rebuilt is not None:
        return rebuilt
    if saved is None:
        raise NotReadable("an operand that the graph does not keep")
    return saved


def _operands(node: Any) -> Kept:
    return {"left": _kept(node, node._saved_self), "right": _kept(node, node._saved_other)}


def _product(kept: Kept, a: Tensor | None, b: Tensor | None = None) -> Tensor:
    return _operand(a, kept["left"]) * _operand(b, kept["right"])


def _denominator(node: Any) -> Kept:
    # The saved numerator is kept only where the denominator has a graph; a plain numerator is not kept.
    return {"right": _kept(node, node._saved_other)}


def _quotient(kept: Kept, a: Tensor | None, b: Tensor | None = None) -> Tensor:
    return _operand(a, None) / _operand(b, kept["right"])


def _signed_alpha(node: Any) -> Kept:
    return {"alpha": node._saved_alpha if node.name().startswith("Add") else -node._saved_alpha}


def _sum_of(kept: Kept, a: Tensor | None, b: Tensor | None) -> Tensor:
    # Gradients do not depend on a term without a graph, and the usual one is the zero that a sum began with.
    if a is None or b is None:
        return a if b is None else kept["alpha"] * b  # pyright: ignore[reportReturnType]
    return a + kept["alpha"] * b


def _dimensions(node: Any) -> Kept:
    if not node.name().endswith("1"):
        return {}
    return {"dim": _signed(node._saved_dim), "keepdim": node._saved_keepdim}


def _slice(node: Any) -> Kept:
    names = ("dim", "start", "end", "step")
    return {name: _signed(getattr(node, f"_saved_{name}")) for name in names}


def _sliced(kept: Kept, x: Tensor) -> Tensor:
    return torch.ops.aten.slice.Tensor(x, kept["dim"], kept["start"], kept["end"], kept["step"])


def _classes(node: Any) -> Kept:
    return {
        "target": node._saved_target,
        "weight": node._saved_weight,
        "ignore_index": _signed(node._saved_ignore_index),
        "reduction": _REDUCTIONS[node._saved_reduction],
    }


def _nll(kept: Kept, x: Tensor) -> Tensor:
    return F.nll_loss(x, **kept)


def _squares(node: Any) -> Kept:
    return {"target": node._saved_target, "reduction": _REDUCTIONS[node._saved_reduction]}


def _squared(kept: Kept, x: Tensor, _: Tensor | None = None) -> Tensor:
    return F.mse_loss(x, **kept)


def _target(node: Any) -> Kept:
    return {"dtype": node._input_metadata[0].dtype, "device": node._input_metadata[0].device}


def _shape(node: Any) -> Kept:
    return {"shape": list(node._input_metadata[0].shape)}


def _saved(*names: str) -> Callable[[Any], Kept]:
    """What a node keeps under these names."""
    return lambda node: {name: _signed(getattr(node, f"_saved_{name}")) for name in names}


def _signed(value: Any) -> Any:
    """Sizes and dimensions are saved unsigned: -1 reads as 2**64 - 1."""
    if isinstance(value, tuple | list):
        return [_signed(v) for v in value]
    return value - 2**64 if isinstance(value, int) and value >= 2**63 else value


def _nothing(_node: Any) -> Kept:
    return {}


_reshaped = (_shape, lambda kept, x: x.reshape(kept["shape"]))
_averaged = (_dimensions, lambda kept, x: torch.mean(x, **kept))
_summed = (_dimensions, lambda kept, x: torch.sum(x, **kept))

_OPERATORS: dict[str, tuple[Callable[[Any], Kept], Callable[..., Tensor]]] = {
    "MulBackward0": (_operands, _product),
    "DivBackward0": (_denominator, _quotient),
    "AddBackward0": (_signed_alpha, _sum_of),
    "SubBackward0": (_signed_alpha, _sum_of),
    "NegBackward0": (_nothing, lambda _, x: -x),
    "MeanBackward0": _averaged,
    "MeanBackward1": _averaged,
    "SumBackward0": _summed,
    "SumBackward1": _summed,
    "PowBackward0": (_saved("exponent"), lambda kept, x: x ** kept["exponent"]),
    "LogBackward0": (_nothing, lambda _, x: torch.log(x)),
    "ExpBackward0": (_nothing, lambda _, x: torch.exp(x)),
    "LogSigmoidBackward0": (_nothing, lambda _, x: F.logsigmoid(x)),
    "NllLossBackward0": (_classes, _nll),
    "NllLoss2DBackward0": (_classes, _nll),
    "LogSoftmaxBackward0": (_saved("dim"), lambda kept, x: x.log_softmax(kept["dim"])),
    "MseLossBackward0": (_squares, _squared),
    "ViewBackward0": _reshaped,
    "UnsafeViewBackward0": _reshaped,
    "ReshapeAliasBackward0": _reshaped,
    "SqueezeBackward0": _reshaped,
    "SqueezeBackward1": _reshaped,
    "SqueezeBackward2": _reshaped,
    "UnsqueezeBackward0": _reshaped,
    "TransposeBackward0": (_saved("dim0", "dim1"), lambda kept, x: x.transpose(kept["dim0"], kept["dim1"])),
    "SliceBackward0": (_slice, _sliced),
    "SelectBackward0": (_saved("dim", "index"), lambda kept, x: x.select(kept["dim"], kept["index"])),
    "GatherBackward0": (_saved("dim", "index"), lambda kept, x: x.gather(kept["dim"], kept["index"])),
    "ToCopyBackward0": (_target, lambda kept, x: x.to(**kept)),
    "CloneBackward0": (_nothing, lambda _, x: x),
}
