"""The discarded step taken after all, with gradients that were computed anew, by all ranks alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from finitune.monitor.heal.averaging import averaged
from finitune.monitor.heal.cure import Now, Unable
from finitune.monitor.probes.deepspeed import is_partitioned, put_in_parts, trained_by
from finitune.monitor.probes.finite import are_finite
from finitune.monitor.probes.update import why_not_by_hand
from finitune.monitor.replay.capture import Capture
from finitune.monitor.replay.rerun import gradients, silences_hooks, trained_in

UNLIKE = 10.0
"""New gradients whose norm is so many times beyond all that the run has seen are not those that its loop would use."""


def check_able(now: Now) -> None:
    """Raises Unable where the loop does something to gradients that the replay does not repeat."""
    watched, update = now.watched, now.watched.update
    why = None
    if watched.group.split:
        why = "the ranks hold parts of the model"
    elif (by_hand := why_not_by_hand(update)) is not None:
        why = by_hand
    elif not now.waits:
        why = "the loop skips this step by itself"
    elif update.scaler_decides or any(micro.scale is not None for micro in now.setting.capture.micro_steps):
        why = "a GradScaler decides about this step"
    elif watched.before is not None:
        why = "the optimizer evaluates its closure several times"
    elif now.clip is not None and (now.clip.peaks is not None or now.clip.max_norm is None):
        why = "the loop clips in a way that is not repeated"
    elif watched.model is None or silences_hooks(watched.model, but_of="deepspeed"):  # those reduce over the ranks
        why = "hooks on accumulated gradients are not run again"
    if why is not None:
        raise Unable(why)


def put_gradients(now: Now, found: Callable[[], Capture], *, at_first: bool = False) -> None:
    """Gradients of what is `found` in place of the bad ones, averaged over the ranks as in the run and clipped as the
    loop clips; the optimizer then takes its step. All ranks call this, each with what it has of the step.

    `at_first`: also where no earlier step shows how large its gradients are, as the loop itself would take them.

    Raises Unable, with nothing changed, where they are not finite or unlike those of the run; and on all ranks where
    one of them finds nothing.
    """
    optimizer = now.watched.optimizer()
    own = trained_by(optimizer) if is_partitioned(optimizer) else list(now.reading.parameters)

    def computed() -> dict[int, Tensor | None]:
        setting = replace(now.setting, capture=found())
        if not {id(p) for p in own} <= {id(p) for p in trained_in(setting)}:
            raise Unable("some of what is trained lies outside the model")
        return {id(p): gradient for p, gradient in gradients(setting)}

    try:
        of = {id(p): gradient for p, gradient in averaged(now.watched.group, own, computed)}
    except Exception as error:
        raise Unable(str(error)) from error
    new = [torch.zeros_like(p) if (g := of.get(id(p))) is None else g for p in own]
    if not are_finite(new):
        raise Unable("the gradients of the other samples are not finite")
    norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.double()) for g in new])))
    usual = [seen for seen in now.grad_norms.values.tolist() if math.isfinite(seen)]
    if not usual and (not at_first or now.by_hand):
        raise Unable("no earlier step shows how large its gradients are")
    if usual and not min(usual) / UNLIKE <= norm <= max(usual) * UNLIKE:
        raise Unable(f"their gradient norm, {norm:.3g}, is unlike those of the run")
    _replace(now, list(zip(own, new, strict=True)), norm)


def take_back(now: Now) -> None:
    """The step is discarded after all: another rank could not take it."""
    now.watched.update.withhold()
    now.watched.discarded = True


@torch.no_grad()
def _replace(now: Now, new: list[tuple[Any, Tensor]], norm: float) -> None:
    limit = now.clip.max_norm if now.clip is not None else None
    factor = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))  # as torch clips; DeepSpeed does it in its step
    clipped = [(p, gradient * factor) for p, gradient in new]
    update = now.watched.update
    update.restore_gradients()
    try:
        if is_partitioned(update.optimizer):
            put_in_parts(update.optimizer, clipped)
        else:
            for p, gradient in clipped:
                p.grad.copy_(gradient)
    except BaseException:  # no bad gradient may be left for the step
        update.withhold()
        raise
    now.watched.discarded = False
