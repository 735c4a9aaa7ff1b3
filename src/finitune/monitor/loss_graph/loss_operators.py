"""The operators between a model and a loss that can be run again: what their autograd nodes keep, and how to apply it.

`OPERATORS` maps the name of a node to a pair: what is kept of a node, and the operator applied to what was kept and
to its rebuilt inputs, None for an input without a graph. Of an operand that is rebuilt nothing is kept, so no logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from finitune.monitor.loss_graph import joins, orders
from finitune.monitor.loss_graph.comparisons import COMPARISONS
from finitune.monitor.loss_graph.node_operators import name_of, signed

Kept = Mapping[str, Any]
Operator = tuple[Callable[[Any], Kept], Callable[..., Any]]


class NotReadable(Exception):
    """The graph holds a node whose constants it does not keep; the message names it."""


LINEAR = frozenset({
    "AddBackward0", "AddBackward1", "SubBackward0", "SubBackward1", "RsubBackward1", "NegBackward0", "MulBackward0",
    "DivBackward0", "MeanBackward0",
    "MeanBackward1", "SumBackward0", "SumBackward1", "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0",
    "SqueezeBackward0", "SqueezeBackward1", "SqueezeBackward2", "UnsqueezeBackward0", "TransposeBackward0",
    "SliceBackward0", "SelectBackward0", "GatherBackward0", "ToCopyBackward0", "CloneBackward0", "StackBackward0",
    "CatBackward0", "ExpandBackward0", "PermuteBackward0", "TBackward0", "WhereBackward0", "MaskedFillBackward0",
    "IndexBackward0", "CumsumBackward0", "UnbindBackward0", "SplitBackward0", "FlipBackward0", "RepeatBackward0",
    "IndexSelectBackward0", "DiagonalBackward0", "TrilBackward0", "TriuBackward0", "RollBackward0", "MulBackward1",
})  # fmt: skip
"""Below these alone an added constant changes the loss by a constant, and no gradient: it need not be known."""
DROPS_CONSTANT = frozenset({
    "AddBackward0", "AddBackward1", "SubBackward0", "SubBackward1", "RsubBackward1", "WhereBackward0",
    "MaskedFillBackward0",
})  # fmt: skip
"""Their nodes do not keep the operand without a graph. It is found from the result, where what takes the result keeps
that; else it is taken as 0."""
JOINS = ("CatBackward0", "StackBackward0")
BEYOND = 1e4
"""Whose exponential is 0 or infinite in every dtype, and which float16 holds."""


def _bounded(logarithm: Tensor) -> Tensor:
    """What went into an exponential that is 0 or infinite was finite; how large is not known."""
    return logarithm.clamp(-BEYOND, BEYOND)


GIVEN: dict[str, Callable[[Any], tuple[Tensor | None, ...]]] = {
    **dict.fromkeys(
        ("PowBackward0", "AbsBackward0", "LogBackward0", "ClampBackward1", "ClampMinBackward0", "ClampMaxBackward0",
         "LogSigmoidBackward0", "SoftplusBackward0", "LogsumexpBackward0", "MseLossBackward0", "SmoothL1LossBackward0",
         "HuberLossBackward0", "BinaryCrossEntropyBackward0", "BinaryCrossEntropyWithLogitsBackward0",
         "LinalgVectorNormBackward0", "NormBackward1", "AcosBackward0", "AsinBackward0", "CosBackward0", "SinBackward0",
         "ErfBackward0", "Log1PBackward0", "Log2Backward0", "Log10Backward0", "SiluBackward0", "GeluBackward0",
         "LeakyReluBackward0", "EluBackward0", "VarBackward0", "StdBackward0", "AmaxBackward0", "AminBackward0",
         "MaxBackward1", "MinBackward1", "HardtanhBackward0"),
        lambda node: (node._saved_self, getattr(node, "_saved_target", None)),
    ),
    **dict.fromkeys(
        ("MulBackward0", "DivBackward0", "MinimumBackward0", "MaximumBackward0", "XlogyBackward0",
         "LogaddexpBackward0"),
        lambda node: (node._saved_self, node._saved_other),
    ),
    "ExpBackward0": lambda node: (_bounded(node._saved_result.log()),),
    "SqrtBackward0": lambda node: (node._saved_result.square(),),
    "RsqrtBackward0": lambda node: (node._saved_result.square().reciprocal(),),
    "ReciprocalBackward0": lambda node: (node._saved_result.reciprocal(),),
    "LinalgCholeskyExBackward0": lambda node: (node._saved_L @ node._saved_L.mH,),
    "SigmoidBackward0": lambda node: (_bounded(node._saved_result.logit()),),
    "LogSoftmaxBackward0": lambda node: (node._saved_result,),
    "SoftmaxBackward0": lambda node: (_bounded(node._saved_result.log()),),
}  # fmt: skip
"""The values that went into an operator, where its node keeps them or its result tells them."""
RESHAPES = (
    "ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "SqueezeBackward0", "SqueezeBackward1",
    "SqueezeBackward2", "UnsqueezeBackward0", "CloneBackward0",
)  # fmt: skip
"""What goes into them is what comes out, in another shape."""
CHOOSES = ("WhereBackward0", "MaskedFillBackward0")
"""What goes into them is what comes out where it was chosen; elsewhere it does not matter."""
WEIGHT = "torch::autograd::AccumulateGrad"
TIMES_GRADIENT = "times the gradient"
"""No node: a number whose derivative is that of a tensor whose backward was given a gradient."""
"""A trained tensor that the loop uses in its loss by itself, as for a penalty."""
SEVERAL = (
    "UnbindBackward0", "SplitBackward0", "LinalgSlogdetBackward0", "LinalgSvdBackward0", "LinalgEighBackward0",
    "LinalgInvExBackward0",
)  # fmt: skip
"""Operators with several outputs: which one is used is kept as `part`."""
PRODUCTS = ("MulBackward0", "MmBackward0", "BmmBackward0", "MvBackward0", "DotBackward0", "AddmmBackward0")
"""Of two operands, of which one without a graph is kept as `left` or `right`."""
PASSES_THROUGH = ("_DDPSinkBackward", "AliasBackward0")
"""Identities: output n is input n."""


def without_graph(node: Any, place: int) -> bool:
    return node.next_functions[place][0] is None


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
    """The operands without a graph; those with one are rebuilt."""
    left = _kept(node, node._saved_self) if without_graph(node, 0) else None
    right = _kept(node, node._saved_other) if len(node.next_functions) < 2 or without_graph(node, 1) else None
    return {"left": left, "right": right}


def _two(function: Callable[[Any, Any], Tensor]) -> Callable[..., Tensor]:
    def apply(kept: Kept, a: Tensor | None, b: Tensor | None = None) -> Tensor:
        return function(_operand(a, kept["left"]), _operand(b, kept["right"]))

    return apply


def _factors(left: str, right: str) -> Callable[[Any], Kept]:
    """The operands of a product of matrices or vectors that have no graph, as the node calls them."""

    def keep(node: Any) -> Kept:
        first, second = (node.next_functions[place][0] is None for place in (-2, -1))
        return {
            "left": getattr(node, f"_saved_{left}") if first else None,
            "right": getattr(node, f"_saved_{right}") if second else None,
        }

    return keep


def _affine(node: Any) -> Kept:
    if without_graph(node, 0):
        raise NotReadable("a bias without a graph")
    return {**_factors("mat1", "mat2")(node), "alpha": node._saved_alpha, "beta": node._saved_beta}


def _added(kept: Kept, bias: Tensor, a: Tensor | None, b: Tensor | None) -> Tensor:
    left, right = _operand(a, kept["left"]), _operand(b, kept["right"])
    return torch.addmm(bias, left, right, alpha=kept["alpha"], beta=kept["beta"])


def _denominator(node: Any) -> Kept:
    # The saved numerator is kept only where the denominator has a graph; a plain numerator is not kept.
    right = _kept(node, node._saved_other) if len(node.next_functions) < 2 or without_graph(node, 1) else None
    return {"left": _kept(node, node._saved_self) if without_graph(node, 0) else None, "right": right}


def _alpha(node: Any) -> Kept:
    return {"alpha": getattr(node, "_saved_alpha", 1)}


def _sum_of(kept: Kept, a: Tensor | None, b: Tensor | None = None, *, of: Any = torch.add) -> Any:
    if b is None:
        return a
    return of(torch.zeros_like(b) if a is None else a, b, alpha=kept["alpha"])


def _dimensions(node: Any) -> Kept:
    if not name_of(node).endswith("1"):
        return {}
    return {"dim": signed(node._saved_dim), "keepdim": node._saved_keepdim}


def _into(node: Any) -> Kept:
    """Of what is added to another tensor at places; without a graph that is taken as zeros, which the loss shows."""
    if without_graph(node, -1):
        raise NotReadable("what is added at places has no graph")
    of = node._input_metadata[0]
    alpha = {"alpha": node._saved_alpha} if hasattr(node, "_saved_alpha") else {}
    return {"shape": list(of.shape), "dim": signed(node._saved_dim), "index": node._saved_index, **alpha}


def _added_at(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(kept: Kept, base: Tensor | None, source: Tensor) -> Tensor:
        more = {"alpha": kept["alpha"]} if "alpha" in kept else {}
        base = source.new_zeros(kept["shape"]) if base is None else base
        return function(base, kept["dim"], kept["index"], source, **more)

    return apply


def _exponent(node: Any) -> Kept:
    left = _kept(node, node._saved_self) if without_graph(node, 0) else None
    return {"left": left, "right": _kept(node, node._saved_exponent) if without_graph(node, 1) else None}


def _cast(node: Any) -> Kept:
    return {"dtype": node._input_metadata[0].dtype, "device": node._input_metadata[0].device}


def _shape(node: Any) -> Kept:
    return {"shape": list(node._input_metadata[0].shape)}


def _saved(*names: str) -> Callable[[Any], Kept]:
    """What a node keeps under these names."""
    return lambda node: {name: signed(getattr(node, f"_saved_{name}")) for name in names}


def _indices(node: Any) -> Kept:
    return {"indices": list(node._saved_indices)}


def _indexed(kept: Kept, x: Tensor) -> Tensor:
    return torch.ops.aten.index.Tensor(x, kept["indices"])


def _chosen(kept: Kept, a: Tensor | None, b: Tensor | None) -> Tensor:
    zero = torch.zeros_like(a if a is not None else b)  # pyright: ignore[reportArgumentType]
    return torch.where(kept["condition"], zero if a is None else a, zero if b is None else b)


def _nothing(_node: Any) -> Kept:
    return {}


def _plain(function: Callable[[Tensor], Tensor]) -> Operator:
    return _nothing, lambda _, x: function(x)


def _with(function: Callable[..., Tensor], *names: str) -> Operator:
    """A function of one tensor and of what its node keeps under these names."""
    return _saved(*names), lambda kept, x: function(x, *(kept[name] for name in names))


def _part(function: Callable[..., Any], *names: str) -> Operator:
    """The same, where the function returns several tensors."""
    return _saved(*names), lambda kept, x: function(x, *(kept[name] for name in names))[kept["part"]]


def _sliced(kept: Kept, x: Tensor) -> Tensor:
    return torch.ops.aten.slice.Tensor(x, kept["dim"], kept["start"], kept["end"], kept["step"])


_reshaped: Operator = (_shape, lambda kept, x: x.reshape(kept["shape"]))
_averaged: Operator = (_dimensions, lambda kept, x: torch.mean(x, **kept))
_summed: Operator = (_dimensions, lambda kept, x: torch.sum(x, **kept))
_softened: Operator = (_saved("beta", "threshold"), lambda kept, x: F.softplus(x, **kept))

OPERATORS: dict[str, Operator] = {
    TIMES_GRADIENT: (lambda _: {}, lambda kept, x: (x * kept["gradient"]).sum()),
    WEIGHT: (lambda node: {"variable": node.variable}, lambda kept: kept["variable"]),
    "MulBackward0": (_operands, _two(lambda a, b: a * b)),
    "DivBackward0": (_denominator, _two(lambda a, b: a / b)),
    "MmBackward0": (_factors("self", "mat2"), _two(torch.mm)),
    "BmmBackward0": (_factors("self", "mat2"), _two(torch.bmm)),
    "MvBackward0": (_factors("self", "vec"), _two(torch.mv)),
    "DotBackward0": (_factors("self", "tensor"), _two(torch.dot)),
    "AddmmBackward0": (_affine, _added),
    "MinimumBackward0": (_operands, _two(torch.minimum)),
    "MaximumBackward0": (_operands, _two(torch.maximum)),
    "AddBackward0": (_alpha, _sum_of),
    "SubBackward0": (_alpha, partial(_sum_of, of=torch.sub)),
    "AddBackward1": _plain(lambda x: x),
    "SubBackward1": _plain(lambda x: x),
    "RsubBackward1": (_nothing, lambda _, x: -x),
    "NegBackward0": _plain(torch.neg),
    "AbsBackward0": _plain(torch.abs),
    "LogBackward0": _plain(torch.log),
    "ExpBackward0": _plain(torch.exp),
    "SqrtBackward0": _plain(torch.sqrt),
    "RsqrtBackward0": _plain(torch.rsqrt),
    "ReciprocalBackward0": _plain(torch.reciprocal),
    "SigmoidBackward0": _plain(torch.sigmoid),
    "TanhBackward0": _plain(torch.tanh),
    "ReluBackward0": _plain(torch.relu),
    "LogSigmoidBackward0": _plain(F.logsigmoid),
    "CloneBackward0": _plain(lambda x: x),
    "TBackward0": _plain(torch.t),
    "SoftplusBackward0": _softened,
    "MeanBackward0": _averaged,
    "MeanBackward1": _averaged,
    "SumBackward0": _summed,
    "SumBackward1": _summed,
    "LogsumexpBackward0": (_saved("dim", "keepdim"), lambda kept, x: torch.logsumexp(x, **kept)),
    "CumsumBackward0": (_saved("dim"), lambda kept, x: x.cumsum(kept["dim"])),
    "PowBackward0": (_saved("exponent"), lambda kept, x: x ** kept["exponent"]),
    "ClampBackward1": (_saved("min", "max"), lambda kept, x: x.clamp(kept["min"], kept["max"])),
    "ClampMinBackward0": (_saved("min"), lambda kept, x: x.clamp_min(kept["min"])),
    "ClampMaxBackward0": (_saved("max"), lambda kept, x: x.clamp_max(kept["max"])),
    "WhereBackward0": (_saved("condition"), _chosen),
    "MaskedFillBackward0": (_saved("mask"), lambda kept, x, _=None: x.masked_fill(kept["mask"], 0.0)),
    **COMPARISONS,
    "LogSoftmaxBackward0": (_saved("dim"), lambda kept, x: x.log_softmax(kept["dim"])),
    "SoftmaxBackward0": (_saved("dim"), lambda kept, x: x.softmax(kept["dim"])),
    "CtcLossBackward0": (
        _saved("targets", "input_lengths", "target_lengths", "blank", "zero_infinity"),
        lambda kept, x: torch.ops.aten._ctc_loss(x, **kept)[0],
    ),
    "StackBackward0": (_saved("dim"), joins.stack),
    "CatBackward0": (_saved("dim"), joins.cat),
    "ViewBackward0": _reshaped,
    "UnsafeViewBackward0": _reshaped,
    "ReshapeAliasBackward0": _reshaped,
    "SqueezeBackward0": _reshaped,
    "SqueezeBackward1": _reshaped,
    "SqueezeBackward2": _reshaped,
    "UnsqueezeBackward0": _reshaped,
    "ExpandBackward0": (_shape, lambda kept, x: x.expand(kept["shape"])),
    "PermuteBackward0": (_saved("dims"), lambda kept, x: x.permute(kept["dims"])),
    "TransposeBackward0": (_saved("dim0", "dim1"), lambda kept, x: x.transpose(kept["dim0"], kept["dim1"])),
    "SliceBackward0": (_saved("dim", "start", "end", "step"), _sliced),
    "SelectBackward0": (_saved("dim", "index"), lambda kept, x: x.select(kept["dim"], kept["index"])),
    "GatherBackward0": (_saved("dim", "index"), lambda kept, x: x.gather(kept["dim"], kept["index"])),
    **dict.fromkeys(("SortBackward0", "SortBackward1"), (_saved("dim", "indices"), orders.sort)),
    "TopkBackward0": (_saved("dim", "indices"), orders.topk),
    "IndexBackward0": (_indices, _indexed),
    "ToCopyBackward0": (_cast, lambda kept, x: x.to(**kept)),
    **{f"{name}Backward0": _plain(function) for name, function in {
        "Acos": torch.acos, "Asin": torch.asin, "Cos": torch.cos, "Sin": torch.sin, "Tan": torch.tan,
        "Erf": torch.erf, "Expm1": torch.expm1, "Log1P": torch.log1p, "Log2": torch.log2, "Log10": torch.log10,
        "Lgamma": torch.lgamma, "Digamma": torch.digamma, "Silu": F.silu, "Mish": F.mish, "Sign": torch.sign,
        "Prod": torch.prod, "Trace": torch.trace,
    }.items()},
    "MaxBackward1": _plain(torch.max),
    "MinBackward1": _plain(torch.min),
    "GeluBackward0": (_saved("approximate"), lambda kept, x: F.gelu(x, **kept)),
    "LeakyReluBackward0": _with(F.leaky_relu, "negative_slope"),
    "EluBackward0": _with(torch.ops.aten.elu, "alpha", "scale", "input_scale"),
    "HardtanhBackward0": _with(F.hardtanh, "min_val", "max_val"),
    "LinalgVectorNormBackward0": _with(torch.linalg.vector_norm, "ord", "dim", "keepdim"),
    "NormBackward1": _with(torch.norm, "p", "dim", "keepdim"),
    "AmaxBackward0": _with(torch.amax, "dim", "keepdim"),
    "AminBackward0": _with(torch.amin, "dim", "keepdim"),
    "MaxBackward0": (_saved("dim", "keepdim"), lambda kept, x: torch.max(x, **kept).values),
    "MinBackward0": (_saved("dim", "keepdim"), lambda kept, x: torch.min(x, **kept).values),
    "ProdBackward1": _with(torch.prod, "dim", "keepdim"),
    "CumprodBackward0": _with(torch.cumprod, "dim"),
    "VarBackward0": (_saved("dim", "correction", "keepdim"), lambda kept, x: torch.var(x, **kept)),
    "StdBackward0": (_saved("dim", "correction", "keepdim"), lambda kept, x: torch.std(x, **kept)),
    "TrilBackward0": _with(torch.tril, "diagonal"),
    "TriuBackward0": _with(torch.triu, "diagonal"),
    "DiagonalBackward0": _with(torch.diagonal, "offset", "dim1", "dim2"),
    "RepeatBackward0": (_saved("repeats"), lambda kept, x: x.repeat(kept["repeats"])),
    "FlipBackward0": _with(torch.flip, "dims"),
    "RollBackward0": _with(torch.roll, "shifts", "dims"),
    "IndexSelectBackward0": _with(torch.index_select, "dim", "index"),
    "IndexAddBackward0": (_into, _added_at(torch.index_add)),
    "ScatterAddBackward0": (_into, _added_at(torch.scatter_add)),
    "XlogyBackward0": (_operands, _two(torch.xlogy)),
    "LogaddexpBackward0": (_operands, _two(torch.logaddexp)),
    "Atan2Backward0": (_operands, _two(torch.atan2)),
    "PowBackward1": (_exponent, _two(torch.pow)),
    "UnbindBackward0": _part(torch.unbind, "dim"),
    "SplitBackward0": _part(torch.split, "split_size", "dim"),
    "LinalgSlogdetBackward0": _part(torch.linalg.slogdet),
    "LinalgInvExBackward0": _part(torch.linalg.inv_ex),
    "LinalgSvdBackward0": _part(torch.linalg.svd, "full_matrices"),
    "LinalgEighBackward0": _part(torch.linalg.eigh),
}  # fmt: skip
