"""A constant that a loop adds in its own code: the graph does not keep it, the result of the sum shows it.

Beside a number that is far larger the result shows little of it. Where a sum in the code that runs spells an operand
that gives the very same result, that is the constant.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from finitune.monitor.replay.arithmetic import evaluate
from finitune.monitor.replay.loss_operators import NotReadable
from finitune.monitor.replay.source_line import user_frames
from finitune.monitor.replay.source_tree import nodes_in, scope_of


def with_constant(
    term: int, known: Tensor, result: Tensor, first: dict[int, tuple[Tensor, Tensor]], *, in_part: bool
) -> Tensor:
    """The value of a term of which one part is `known`: `result` where that part is as it was, else with the same
    constant added.
    """
    known = known.to(torch.promote_types(known.dtype, result.dtype)).expand_as(result)
    with _disable_current_modes():  # what is computed here is no part of the step that a watch looks at
        values = _with_constant(term, known.detach(), result, first, in_part=in_part)
    changed: Any = _Changed.apply(known, values)
    return changed


def _with_constant(
    term: int, known: Tensor, result: Tensor, first: dict[int, tuple[Tensor, Tensor]], *, in_part: bool
) -> Tensor:
    if term not in first:
        added = _one_number(result, known).expand_as(result) if in_part else _added(result, known)
        first[term] = known, added
    before, constant = first[term]
    if in_part:
        result = torch.where(result.isnan(), before + constant, result)
    same = (known == before) | (known.isnan() & before.isnan())
    if not bool((same | torch.isfinite(constant)).all()):
        raise NotReadable("an operand that the graph does not keep, where the model's output was not finite")
    return torch.where(same, result, known + constant)


def _added(result: Tensor, known: Tensor) -> Tensor:
    """Raises NotReadable where the code that runs holds `known` as it was in the step, and it was another."""
    spelled: list[Tensor] = []
    for other, constant in _sums():
        if other is not None and _gives(other, constant, result) and not _same(other, known):
            raise NotReadable("what the model puts out is not what it was in the step")
        if constant.ndim and _gives(known, constant, result):
            added = constant.expand_as(result)
            spelled += [added] if not any(torch.equal(added, one) for one in spelled) else []
    return spelled[0] if len(spelled) == 1 else result - known


def _gives(known: Tensor, constant: Tensor, result: Tensor) -> bool:
    try:
        return _same(known + constant, result)
    except RuntimeError:  # other sizes, another device
        return False


def _same(one: Tensor, other: Tensor) -> bool:
    alike = one.shape == other.shape and one.device == other.device
    return alike and bool(((one == other) | (one.isnan() & other.isnan())).all())


def _sums() -> Iterator[tuple[Tensor | None, Tensor]]:
    """What the running code of the user adds to something with a graph, or subtracts from it or it from; both with
    their signs, None for what calls a model, say.
    """
    for frame in user_frames():
        scope, names = scope_of(frame.f_code), {**frame.f_globals, **frame.f_locals}
        for node in nodes_in(scope) if scope is not None else ():
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
                left, right = _computed(node.left, names), _computed(node.right, names)
                sign = 1 if isinstance(node.op, ast.Add) else -1
                if left is not None and not left.requires_grad and (right is None or right.requires_grad):
                    yield None if right is None else sign * right.detach(), left
                elif right is not None and not right.requires_grad:
                    yield None if left is None else left.detach(), sign * right


def _computed(node: ast.expr, names: Mapping[str, Any]) -> Tensor | None:
    """The value of an expression; None where it calls a model, say."""
    try:
        return torch.as_tensor(evaluate(node, names))
    except Exception:  # not plain, no number, or not to be computed now
        return None


def _one_number(result: Tensor, known: Tensor) -> Tensor:
    """The number that was added to `known`, NaN where all of that was bad; raises NotReadable where it is nowhere seen,
    or more than one number.
    """
    constant, seen = result - known, torch.isfinite(result) & torch.isfinite(known)
    if not torch.isfinite(known).any():
        return constant.new_tensor(torch.nan)
    rounding = 4 * torch.finfo(result.dtype).eps
    if not seen.any() or constant[seen].max() - constant[seen].min() > rounding * result[seen].abs().max():
        raise NotReadable("a term without a graph within a relu, of which too little is known")
    return constant[seen].median()


class _Changed(torch.autograd.Function):
    """A tensor with other values, whose gradient is its own."""

    @staticmethod
    def forward(ctx: Any, known: Tensor, values: Tensor) -> Tensor:
        # An operator that takes `known`, so that a watch can follow what is bad in it.
        return torch.where(torch.ones_like(values, dtype=torch.bool), values.to(known.dtype), known)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None
