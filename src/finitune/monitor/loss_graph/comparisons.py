"""Losses that compare an input with a target: a prediction with a label, or two predictions with each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from finitune.monitor.loss_graph.node_operators import signed

Kept = Mapping[str, Any]
_REDUCTIONS = ("none", "mean", "sum")


def _classes(node: Any) -> Kept:
    return {
        "target": node._saved_target,
        "weight": node._saved_weight,
        "ignore_index": signed(node._saved_ignore_index),
        "reduction": _REDUCTIONS[node._saved_reduction],
    }


def _numbers(*names: str) -> Callable[[Any], Kept]:
    """Of input and target what has no graph, the reduction, and what else is kept under these names."""

    def keep(node: Any) -> Kept:
        saved = {"input": node._saved_self, "target": node._saved_target}
        graphs = [child is not None for child, _ in node.next_functions]
        bare = {name: value for (name, value), known in zip(saved.items(), [*graphs, False], strict=False) if not known}
        more = {name: getattr(node, f"_saved_{name}") for name in names}
        return {**bare, "reduction": _REDUCTIONS[node._saved_reduction], **more}

    return keep


def _by(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def apply(kept: Kept, x: Tensor | None, y: Tensor | None = None) -> Tensor:
        return function(**{"input": x, "target": y, **kept})

    return apply


COMPARISONS: Mapping[str, tuple[Callable[[Any], Kept], Callable[..., Tensor]]] = {
    "NllLossBackward0": (_classes, _by(F.nll_loss)),
    "NllLoss2DBackward0": (_classes, _by(F.nll_loss)),
    "MseLossBackward0": (_numbers(), _by(F.mse_loss)),
    "SmoothL1LossBackward0": (_numbers("beta"), _by(F.smooth_l1_loss)),
    "HuberLossBackward0": (_numbers("delta"), _by(F.huber_loss)),
    "BinaryCrossEntropyBackward0": (_numbers("weight"), _by(F.binary_cross_entropy)),
    "BinaryCrossEntropyWithLogitsBackward0": (
        _numbers("weight", "pos_weight"), _by(F.binary_cross_entropy_with_logits),
    ),
}  # fmt: skip
