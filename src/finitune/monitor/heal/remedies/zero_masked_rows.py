"""Rows of attention that see no key give zeros from now on, in every module of the kind that made the first bad value.

The softmax of a row of -inf is 0/0. Rows that see a key keep their bits. Needs: modules that run as they are written.
Price: each operator of these modules passes through Python, microseconds per operator, and one comparison of the
scores. Undo: their forward is their own again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from finitune.monitor.heal.cure import Case, Cure, Unable, Undo
from finitune.monitor.heal.forwards import for_one_run, run_within
from finitune.monitor.optimizers import Watched
from finitune.reports.sentences import counted

action = "healed"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    model, origin = case.watched.model, case.inquiry.origin
    if model is None or origin is None or not origin.module or "softmax" not in origin.op:
        raise Unable("the first bad value was not seen in a softmax of a module")
    if any(micro.compiled for micro in case.inquiry.capture.micro_steps):
        raise Unable("the model is compiled, and compiled code does not see the change")
    kind = type(model.get_submodule(origin.module))
    names = [name for name, part in model.named_modules() if name and type(part) is kind]
    parts = [model.get_submodule(name) for name in names]
    return Cure(
        text=f"rows of attention that see no key give zeros from now on ({counted(len(names), kind.__name__)})",
        price="a few microseconds per operator of these modules",
        targets=frozenset(names),
        change=lambda _: for_one_run(parts, _Zeros),
        placebo=lambda _: for_one_run(parts, partial(_Zeros, neighbours=True)),
        instead="as many rows beside them instead",
        apply=lambda: run_within(parts, _Zeros),
        orders={"modules": names},
    )


def repeat(watched: Watched, orders: Mapping[str, Any]) -> Undo:
    """The same modules on every rank."""
    assert watched.model is not None
    return run_within([watched.model.get_submodule(name) for name in orders["modules"]], _Zeros)


class _Zeros(TorchDispatchMode):
    """`neighbours`: of the rows that see a key the next ones are set to zero, and the empty ones left as they are."""

    def __init__(self, *, neighbours: bool = False) -> None:
        super().__init__()
        self._neighbours = neighbours

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is not torch.ops.aten._softmax.default:
            return output
        scores: Tensor = args[0]
        empty = scores.detach().amax(args[1], keepdim=True) == -math.inf
        if self._neighbours:
            empty = empty.roll(1) & ~empty
        return output.masked_fill(empty, 0.0)
