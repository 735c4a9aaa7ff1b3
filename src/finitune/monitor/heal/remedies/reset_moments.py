"""The optimizer forgets the moments of the tensors whose second moment is far beyond what their gradients are.

Needs: an optimizer that keeps `exp_avg` and `exp_avg_sq`, as torch's Adam and most of its kin do, in one process.
Price: the next steps of these tensors are of full size, as the first ones of the run were. Undo: their state is what it
was.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from finitune.monitor.heal.cure import Case, Change, Cure, Unable, Undo
from finitune.monitor.probes.optimizers import fresh_state, parameters_of
from finitune.monitor.replay.arms import fresh_first_moment
from finitune.monitor.replay.rerun import gradients
from finitune.reports.sentences import counted
from finitune.symptoms.dead_update import COLLAPSE

action = "healed"
SQUARES = "exp_avg_sq"


def cure(case: Case) -> Cure:
    """Raises Unable."""
    optimizer: Any = case.watched.optimizer()
    known = [p for p in parameters_of(optimizer) if SQUARES in optimizer.state.get(p, {})]
    if not known:
        raise Unable(f"{type(optimizer).__name__} keeps no second moment")
    case.runs += 1
    now = {id(p): g for p, g in gradients(case.inquiry.setting())}
    betas = {id(p): group.get("betas", (0.9, 0.999)) for group in optimizer.param_groups for p in group["params"]}
    chosen = [
        p for p in known
        if (g := now.get(id(p))) is not None and _is_filled(optimizer.state[p], g, betas[id(p)][1])
    ]  # fmt: skip
    if not chosen:
        raise Unable("no tensor's second moment is far beyond its gradients")

    def apply() -> Undo:
        own = {p: optimizer.state.pop(p) for p in chosen}

        def undo() -> None:
            optimizer.state.update(own)

        return undo

    return Cure(
        text=f"the moments of {counted(len(chosen), 'tensor')} of {len(known)} forgotten",
        price="the next steps of these tensors are of full size, as at the beginning",
        targets=frozenset(case.inquiry.modules.name(p) for p in chosen),
        change=_forgetting(optimizer, chosen),
        placebo=fresh_first_moment,
        instead="the first moment alone forgotten",
        apply=apply,
    )


def _forgetting(optimizer: Any, chosen: list[Any]) -> Change:
    def changed(setting: Any) -> Any:
        setting.update_times = 1.0
        return fresh_state(optimizer, chosen)

    return changed


def _is_filled(entries: dict[str, Any], gradient: Tensor, beta: float) -> bool:
    """Whether the root of its mean square is so far beyond the gradient of this step that updates come to nothing."""
    square = float(entries[SQUARES].double().mean())
    corrected = square / (1 - beta ** max(1.0, float(entries.get("step", math.inf))))
    size = float(torch.linalg.vector_norm(gradient.double())) / max(1, gradient.numel()) ** 0.5
    return size > 0 and not size > COLLAPSE * corrected**0.5
