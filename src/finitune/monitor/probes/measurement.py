"""What is measured of one optimizer step: its losses, the norm of every gradient, the loss scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from finitune.monitor.probes.finite import norms
from finitune.monitor.probes.ranks import agree, copies, is_spread, total, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclipped:
    """The gradients right before clipping, which spreads one bad value to all of them."""

    norms: Tensor
    total: Tensor
    """The norm that clipping measured, shape []."""
    seen: tuple[tuple[int, int], ...]
    """Identity and version of each gradient."""
    writes: int = 1
    """How often this clipping changes a gradient in place, at most."""

    @staticmethod
    def of(gradients: list[Tensor], total: Tensor) -> Unclipped:
        seen = tuple((id(g), g._version) for g in gradients)
        return Unclipped(norms=norms(gradients), total=whole(total.detach()), seen=seen)

    @staticmethod
    def by_value(gradients: list[Tensor]) -> Unclipped:
        each = norms(gradients)
        total = torch.linalg.vector_norm(each, dtype=torch.float64)
        seen = tuple((id(g), g._version) for g in gradients)
        return Unclipped(norms=each, total=total, seen=seen, writes=2)

    def only_clipped(self, gradients: list[Tensor]) -> bool:
        """True when clipping is all that has happened to them since."""
        now = [(id(g), g._version) for g in gradients]
        return len(now) == len(self.seen) and all(
            a == b and 0 <= later - earlier <= self.writes
            for (a, earlier), (b, later) in zip(self.seen, now, strict=True)
        )


@dataclass(slots=True, kw_only=True)
class Reading:
    """One optimizer step as it was measured. `skipped` is known only when the step is over."""

    step: int
    losses: tuple[float, ...]
    """What was handed to backward, per micro-step, multiplied by `scale`."""
    norms: Tensor
    """Per gradient, shape [gradients], as they lie in memory, before clipping; of a DTensor the local shard."""
    scale: float
    grad_norm: float
    """Over all gradients, before clipping, without the loss scale."""
    bad: bool
    """Not sound, on this rank or another."""
    bad_loss: bool
    bad_gradients: bool
    skipped: bool = False
    reduction_error: float | None = None
    """Relative distance of the gradients from an independent average over ranks, in steps where it was taken."""
    bad_update: bool = False
    """Loss and gradients were finite, what the optimizer made of them was not."""

    @property
    def loss(self) -> float:
        return sum(self.losses) / self.scale if self.losses else math.nan

    @property
    def what(self) -> str:
        if self.bad_update:
            return "the update is not finite, although loss and gradients are"
        if self.bad_loss:
            return f"loss is {self.loss}"
        count = int((~torch.isfinite(self.norms)).sum())
        where = f"{count} of {len(self.norms)} tensors" if count else "those of another rank"
        return f"gradients are not finite ({where})"


def read_step(
    step: int,
    roots: list[Tensor],
    gradients: list[Tensor],
    unclipped: Unclipped | None,
    *,
    scale: float,
    scaled: bool,
    sharded: bool = False,
) -> Reading:
    """Measure; one read of the gradients and one transfer to the host. All ranks must call it for the same step.

    `roots` are the scalar losses, `scaled` says whether the gradients still carry the loss scale, `sharded` whether
    this rank holds a part of them only.
    """
    reuse = unclipped is not None and unclipped.only_clipped(gradients)
    each = unclipped.norms if unclipped is not None and reuse else norms(gradients)
    spread = is_spread(gradients)
    shares = each / each.new_tensor([copies(g) for g in gradients]).sqrt() if spread else each
    totals = [torch.linalg.vector_norm(shares, dtype=torch.float64)] + ([unclipped.total] if unclipped else [])
    values: list[float] = torch.stack(
        [t.reshape(()).to(each.device, torch.float64) for t in [*roots, *totals]]
    ).tolist()
    losses = tuple(values[: len(roots)])
    scale = max(scale, 1e-45)
    bad_loss, bad_gradients = agree(
        not all(map(math.isfinite, losses)), not all(map(math.isfinite, values[len(roots) :]))
    )
    norm = values[-1]
    if sharded and not (spread and unclipped):  # clipping of DTensors has measured the whole
        norm = math.sqrt(total(norm**2))
    return Reading(
        step=step,
        losses=losses,
        norms=each,
        scale=scale,
        grad_norm=norm / (scale if scaled else 1.0),
        bad=bad_loss or bad_gradients,
        bad_loss=bad_loss,
        bad_gradients=bad_gradients,
    )
