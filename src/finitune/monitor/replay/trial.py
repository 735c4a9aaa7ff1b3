"""A trial update: the optimizer takes its step on given gradients, what it did is looked at, and it is taken back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from finitune.monitor.probes.optimizer_state import StateKept, leaves_kept
from finitune.monitor.probes.optimizer_steps import has_hooks
from finitune.monitor.probes.optimizers import parameters_of

MAX_BYTES = 2 * 2**30
"""Weights and optimizer state are copied; beyond this no trial is made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a trial update did. `losses` are those of the same batch after it."""

    losses: tuple[float, ...]
    moved: float
    """Share of the elements with a gradient that it changed; of one rounded by chance, how much of it arrived."""
    ratio: float
    """Norm of the update over that of the weights, the median over tensors with a gradient."""


def beside_state(optimizer: Any) -> list[Tensor]:
    """Weights, and what the groups keep beside them, as a rate or a count on the device."""
    kept = (value for group in optimizer.param_groups for key, value in group.items() if key != "params")
    return [*parameters_of(optimizer), *(value for value in kept if isinstance(value, Tensor))]


def refuse_large(optimizer: Any, itemsize: int | None = None) -> None:
    """Raises ValueError where a copy of all that it holds, with elements of `itemsize` bytes or of their own, is too
    large.
    """
    tensors = [*beside_state(optimizer), *(leaf for leaf in leaves_kept(optimizer) if isinstance(leaf, Tensor))]
    if sum(t.numel() * (itemsize or t.element_size()) for t in tensors) > MAX_BYTES:
        raise ValueError("no trial update of this size")


def trial_update(
    optimizer: Any, times: float, gradients: Sequence[tuple[nn.Parameter, Tensor | None]],
    losses: Callable[[], tuple[float, ...]],
) -> Trial:  # fmt: skip
    """One step with the learning rate times `times`; weights, state and gradients are given back bit for bit.

    Raises ValueError where an optimizer scales the loss by itself, where the program has hooks on its steps, or where
    the copies are too large.
    """
    if has_hooks(optimizer):
        raise ValueError("no trial update: hooks of the program take part in each step")
    if hasattr(optimizer, "loss_scale"):
        raise ValueError("no trial update for an optimizer with its own loss scaler")
    refuse_large(optimizer)
    state = StateKept(optimizer)
    saved = [(t, t.detach().clone()) for t in beside_state(optimizer)]
    before = {id(t): copy for t, copy in saved}
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    kept = [(p, p.grad) for p, _ in gradients]
    try:
        for p, gradient in gradients:  # autograd remembers the dtype that a parameter had before an arm has cast it
            p.grad = None if gradient is None else gradient.to(p.dtype)
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * times
        optimizer.step()
        trained = [(p.detach(), before[id(p)], g) for p, g in gradients if g is not None and id(p) in before]
        with torch.no_grad():
            moved, ratio = _update_of([(now, was, g) for now, was, g in trained if now.numel()])
            return Trial(losses=losses(), moved=moved, ratio=ratio)
    finally:
        with torch.no_grad():
            for tensor, copy in saved:
                tensor.copy_(copy)
        for group, entries in zip(optimizer.param_groups, groups, strict=True):
            for key in [key for key in group if key != "params" and key not in entries]:
                del group[key]
            group.update(entries)
        for p, gradient in kept:
            p.grad = gradient
        state.restore()


def _update_of(trained: Sequence[tuple[Tensor, Tensor, Tensor]]) -> tuple[float, float]:
    """Of weights after, weights before and gradients: the share that moved, and the median ratio."""
    if not trained:
        return 0.0, 0.0
    pushed = [(now != was) & (g != 0) for now, was, g in trained]
    moved = sum(int(each.sum()) for each in pushed) / max(1, sum(int((g != 0).sum()) for _, _, g in trained))
    ratios = [
        float((now.float() - was.float()).norm() / was.float().norm().clamp_min(1e-30)) for now, was, _ in trained
    ]
    return moved, sorted(ratios)[len(ratios) // 2]
