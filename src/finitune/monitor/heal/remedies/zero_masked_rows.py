"""Rows of attention that see no key give zeros from now on, in every module of the kind that made the first bad value.

The softmax of a row of -inf is 0/0. Rows that see a key keep their bits. Needs: modules that run as they are written.
Price: each operator of these modules passes through Python, microseconds per operator, and one comparison of the
scores. Undo: their forward is their own again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from finitune.monitor.heal.cure import Case, Change, Cure, Unable, Undo
from finitune.monitor.optimizers import Watched
from finitune.monitor.replay.rerun import Setting
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
    return Cure(
        text=f"rows of attention that see no key give zeros from now on ({counted(len(names), kind.__name__)})",
        price="a few microseconds per operator of these modules",
        targets=frozenset(names),
        change=_for_one_run(names, neighbours=False),
        placebo=_for_one_run(names, neighbours=True),
        instead="as many rows beside them instead",
        apply=lambda: _applied(model, names),
        orders={"modules": names},
    )


def repeat(watched: Watched, orders: Mapping[str, Any]) -> Undo:
    """The same modules on every rank."""
    assert watched.model is not None
    return _applied(watched.model, orders["modules"])


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


def _applied(model: nn.Module, names: Sequence[str], *, neighbours: bool = False) -> Undo:
    undone = [_wrapped(model.get_submodule(name), neighbours=neighbours) for name in names]

    def undo() -> None:
        for one in reversed(undone):
            one()

    return undo


def _wrapped(module: nn.Module, *, neighbours: bool) -> Undo:
    own, replaced = module.forward, "forward" in vars(module)

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _Zeros(neighbours=neighbours):
            return own(*args, **kwargs)

    module.forward = forward

    def undo() -> None:
        if vars(module).get("forward") is not forward:
            return  # the program has replaced or removed it since
        if replaced:
            module.forward = own
        else:
            del module.forward

    return undo


def _for_one_run(names: Sequence[str], *, neighbours: bool) -> Change:
    @contextmanager
    def changed(setting: Setting) -> Iterator[None]:
        undo = _applied(setting.model, names, neighbours=neighbours)
        try:
            yield
        finally:
            undo()

    return changed
