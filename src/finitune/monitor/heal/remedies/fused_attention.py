"""Eager attention whose raw product of queries and keys leaves the range takes torch's fused kernel from now on.

Needs: a model of transformers that chooses its kernel when it is called, and other modules of attention beside that of
the first bad value, to compare with. The masks stay those of eager attention, which the fused kernel reads. Price:
nothing; the fused kernel is the faster one. Undo: each module has its own configuration again, which is also what a
checkpoint is written from.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from finitune.monitor.heal.cure import Case, Change, Cure, Unable, Undo, for_one_run
from finitune.monitor.optimizers import Watched
from finitune.monitor.replay.attention import OWN, PLAIN, TORCHS, kernel_of
from finitune.reports.sentences import counted

action = "healed"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    model, origin = case.watched.model, case.inquiry.origin
    if model is None or origin is None or not origin.module or origin.phase != "forward":
        raise Unable("the overflow was not seen in the forward of a module")
    case.refuse_compiled()
    module = model.get_submodule(origin.module)
    if kernel_of(model) != PLAIN or getattr(getattr(module, "config", None), OWN, None) != PLAIN:
        raise Unable("the overflow is not in eager attention of transformers")
    names = [name for name, part in model.named_modules() if type(part) is type(module) and hasattr(part, "config")]
    others = [name for name in names if name != origin.module]
    if not others:
        raise Unable("there is no other attention to compare with")
    return Cure(
        text=f"{TORCHS} attention from now on (was {PLAIN}; {counted(len(names), type(module).__name__)})",
        price="",
        targets=frozenset(names),
        change=_fused(names),
        placebo=_fused(others),
        instead=f"it in every attention but {origin.module}",
        apply=lambda: _applied(model, names),
        orders={"modules": names},
        patch={"attn_implementation": TORCHS},
    )


def repeat(watched: Watched, orders: Mapping[str, Any]) -> Undo:
    """The same modules on every rank."""
    assert watched.model is not None
    return _applied(watched.model, orders["modules"])


def _fused(names: Sequence[str]) -> Change:
    return for_one_run(lambda model: _applied(model, names))


def _applied(model: nn.Module, names: Sequence[str]) -> Undo:
    """Each module reads a configuration of its own, which differs in the kernel alone."""
    parts: list[Any] = [model.get_submodule(name) for name in names]
    own = [part.config for part in parts]
    for part in parts:
        part.config = copy.copy(part.config)
        setattr(part.config, OWN, TORCHS)

    def undo() -> None:
        for part, config in zip(parts, own, strict=True):
            part.config = config

    return undo
