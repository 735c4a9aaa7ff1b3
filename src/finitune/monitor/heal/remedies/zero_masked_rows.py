"""Rows of attention that see no key give zeros from now on, in every module of the kind that made the first bad value.

The softmax of a row of -inf is 0/0. Rows that see a key keep their bits. Needs: modules that run as they are written.
Price: each operator of these modules passes through Python, microseconds per operator, and one comparison of the
scores. Undo: their forward is their own again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn

from finitune.monitor.heal.cure import Case, Cure, Unable, Undo, for_one_run
from finitune.monitor.heal.forwards import run_within
from finitune.monitor.optimizers import Watched
from finitune.monitor.replay.empty_rows import EmptyRows
from finitune.reports.sentences import counted

action = "healed"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    model, origin = case.watched.model, case.inquiry.origin
    if model is None or origin is None or not origin.module or "softmax" not in origin.op:
        raise Unable("the first bad value was not seen in a softmax of a module")
    case.refuse_compiled()
    kind = type(model.get_submodule(origin.module))
    names = [name for name, part in model.named_modules() if name and type(part) is kind]
    return Cure(
        text=f"rows of attention that see no key give zeros from now on ({counted(len(names), kind.__name__)})",
        price="a few microseconds per operator of these modules",
        targets=frozenset(names),
        change=for_one_run(lambda model: _applied(model, names)),
        placebo=for_one_run(lambda model: _applied(model, names, neighbours=True)),
        instead="as many rows beside them instead",
        apply=lambda: _applied(model, names),
        orders={"modules": names},
    )


def repeat(watched: Watched, orders: Mapping[str, Any]) -> Undo:
    """The same modules on every rank."""
    assert watched.model is not None
    return _applied(watched.model, orders["modules"])


def _applied(model: nn.Module, names: Sequence[str], *, neighbours: bool = False) -> Undo:
    return run_within(map(model.get_submodule, names), partial(EmptyRows, neighbours=neighbours))
