"""The discarded step taken after all, with gradients that were computed anew."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from finitune.monitor.heal.cure import Case, Unable
from finitune.monitor.probes.finite import are_finite
from finitune.monitor.probes.optimizers import TorchUpdate
from finitune.monitor.replay.capture import Capture
from finitune.monitor.replay.rerun import gradients, silences_hooks

UNLIKE = 10.0
"""New gradients whose norm is so many times beyond all that the run has seen are not those that its loop would use."""


def check_able(case: Case) -> None:
    """Raises Unable where the loop does something to gradients that the replay does not repeat."""
    watched, update = case.watched, case.watched.update
    why = None
    if watched.group.size > 1:
        why = "the other ranks would have to take it again too"
    elif not case.waits:
        why = "the loop skips this step by itself"
    elif type(update) is not TorchUpdate or not str(type(update.optimizer).step.__module__).startswith("torch.optim."):
        why = f"{type(update.optimizer).__name__} computes its update from more than the gradients"
    elif update.scaler_decides or any(micro.scale is not None for micro in case.inquiry.capture.micro_steps):
        why = "a GradScaler decides about this step"
    elif watched.before is not None:
        why = "the optimizer evaluates its closure several times"
    elif case.clip is not None and (case.clip.peaks is not None or case.clip.max_norm is None):
        why = "the loop clips in a way that is not repeated"
    elif watched.model is None or silences_hooks(watched.model):
        why = "hooks on accumulated gradients are not run again"
    if why is not None:
        raise Unable(why)


def put_gradients(case: Case, capture: Capture, *, at_first: bool = False) -> None:
    """Gradients of `capture` in place of the bad ones, clipped as the loop clips; the optimizer then takes its step.

    `at_first`: also where no earlier step shows how large its gradients are, as the loop itself would take them.

    Raises Unable, with nothing changed, where they are not finite or unlike those of the run.
    """
    setting = case.inquiry.setting()
    setting.capture = capture
    of = {id(p): new for p, new in gradients(setting)}
    case.runs += 1
    pairs = list(case.reading.parameters)
    if not {id(p) for p in pairs} <= of.keys():
        raise Unable("some of what is trained lies outside the model")
    new = [torch.zeros_like(p) if (g := of[id(p)]) is None else g for p in pairs]
    if not are_finite(new):
        raise Unable("the gradients of the other samples are not finite")
    norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g.double()) for g in new])))
    usual = [seen for seen in case.grad_norms.values.tolist() if math.isfinite(seen)]
    if not usual and (not at_first or case.inquiry.by_hand):
        raise Unable("no earlier step shows how large its gradients are")
    if usual and not min(usual) / UNLIKE <= norm <= max(usual) * UNLIKE:
        raise Unable(f"their gradient norm, {norm:.3g}, is unlike those of the run")
    _replace(case, new, norm)


@torch.no_grad()
def _replace(case: Case, new: list[Tensor], norm: float) -> None:
    limit = case.clip.max_norm if case.clip is not None else None
    factor = 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))  # as torch clips
    clipped = [gradient * factor for gradient in new]
    update = case.watched.update
    update.restore_gradients()
    try:
        for p, gradient in zip(case.reading.parameters, clipped, strict=True):
            assert p.grad is not None
            p.grad.copy_(gradient)
    except BaseException:  # no bad gradient may be left for the step
        update.withhold()
        raise
    case.watched.discarded = False
