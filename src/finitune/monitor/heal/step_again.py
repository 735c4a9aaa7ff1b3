"""The discarded step taken after all, with gradients that were computed anew, by all ranks alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from finitune.monitor.capture.step import Capture
from finitune.monitor.heal.averaging import averaged
from finitune.monitor.heal.cure import Now, Unable
from finitune.monitor.heal.scaled_gradients import forget_overflow, may_forget_overflow, unscaled, why_not_unscaled
from finitune.monitor.optimizers import Watched
from finitune.monitor.probes.deepspeed import is_partitioned, put_in_parts, trained_by
from finitune.monitor.probes.finite import are_finite
from finitune.monitor.probes.update import why_not_by_hand
from finitune.monitor.replay.rerun import gradients, silences_hooks, trained_in

UNLIKE = 10.0
"""New gradients whose norm is so many times beyond all that the run has seen are not those that its loop would use."""


def check_able(now: Now) -> None:
    """Raises Unable where the loop does something to gradients that the replay does not repeat."""
    watched, update, capture = now.watched, now.watched.update, now.setting.capture
    why = why_not_unscaled(capture, now.clip)
    if watched.group.split:
        why = "the ranks hold parts of the model"
    elif (by_hand := why_not_by_hand(update)) is not None:
        why = by_hand
    elif not now.waits:
        why = "the loop skips this step by itself"
    elif not may_forget_overflow(watched, capture):
        why = "the scaler of the loop keeps its verdict to itself"
    elif watched.before is not None:
        why = "the optimizer evaluates its closure several times"
    elif now.clip is not None and (now.clip.peaks is not None or now.clip.max_norm is None):
        why = "the loop clips in a way that is not repeated"
    elif watched.model is None or silences_hooks(watched.model, but_of="deepspeed"):  # those reduce over the ranks
        why = "hooks on accumulated gradients are not run again"
    if why is not None:
        raise Unable(why)


@contextmanager
def followed(watched: Watched) -> Iterator[None]:
    """A bad step that is given other gradients within is taken as any other step of a run that was changed."""
    watched.given = False
    try:
        yield
    finally:
        if watched.given:
            forget_overflow(watched, Capture(micro_steps=watched.stepping_on))
            if watched.past is not None:
                watched.past.slow_down(watched.optimizer())


@contextmanager
def taken_here(watched: Watched) -> Iterator[None]:
    """The same, of a step for which a GradScaler does not call the optimizer."""
    try:
        yield
    finally:
        watched.update.restore_gradients()
        watched.stepping_on, watched.discarded = [], False
    optimizer: Any = watched.optimizer()
    if watched.given:
        optimizer.step()


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
    scale = now.reading.scale
    new = [unscaled(torch.zeros_like(p) if (g := of.get(id(p))) is None else g, scale) for p in own]
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
    """The step is discarded after all: one of the ranks could not take it."""
    now.watched.update.withhold()
    now.watched.discarded, now.watched.given = True, False


@torch.no_grad()
def _replace(now: Now, new: list[tuple[Any, Tensor]], norm: float) -> None:
    limit = now.clip.max_norm if now.clip is not None else None
    factor = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))  # as torch clips; DeepSpeed does it in its step
    update = now.watched.update
    if is_partitioned(update.optimizer) or update.gradients_are_scaled:
        factor *= update.loss_scale or now.reading.scale  # it takes the scale off by itself
    clipped = [(p, gradient * factor) for p, gradient in new]
    update.restore_gradients()
    try:
        if is_partitioned(update.optimizer):
            put_in_parts(update.optimizer, clipped)
        else:
            for p, gradient in clipped:
                p.grad.copy_(gradient)
    except BaseException:  # no bad gradient may be left for the step
        take_back(now)
        raise
    now.watched.discarded, now.watched.given = False, True
