"""Are gradients reduced over ranks as they should be? A sample is compared with an all-reduce of our own.

A hook on a few parameters adds up the gradient that this rank computes, before any reduction. Right before the
optimizer's step the average of these sums over ranks, taken by one blocking all-reduce, must be what lies in `.grad`,
up to one factor (sum or mean, clipping, a loss scale). A reduction that was overwritten, left out for some tensors or
mixed with another bucket is not, and leaves ranks with different gradients, or with those of another tensor. Where all
have the same, not far off, the loop itself changed them. Only where every rank trains the whole model; a look costs
three small collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from finitune.monitor.probes.ranks import agree, is_spread

Gradients = Sequence[tuple[nn.Parameter, Tensor]]
Again = Callable[[list[nn.Parameter]], list[Tensor]]

FIRST, EVERY = 5, 50
"""Steps that are looked at: the first ones, and then one of so many."""
ELEMENTS = 2**20
"""Of parameters in one look, at most; they rotate from look to look."""
OFF = 0.02
"""Relative distance. Reduction in bfloat16 rounds by 2**-8 per element; a bucket that was overwritten is off by 0.1
to 1 (measured in the example of MedicalGPT)."""

FOREIGN = 0.95
"""Next to nothing of what was computed is left: clipping each value, noise or a projection leave more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What would be applied beside what an independent all-reduce gives."""

    worst: float
    """Largest relative distance over the tensors looked at, on any rank."""
    names: Sequence[str] = ()
    """Tensors that are off on this rank."""
    looked_at: int = 0
    repeats: bool | None = None
    """Whether this rank's own gradient, computed once more, is the same to the last bit; asked where one is off."""

    @property
    def wrong(self) -> bool:
        return self.worst > OFF

    @property
    def text(self) -> str:
        return (
            f"gradients are finite and wrong: {len(self.names)} of {self.looked_at} tensors are not the average over "
            f"ranks (an independent all-reduce differs by up to {self.worst:.0%})"
        )


class ReductionCheck:
    """Looks at a sample of parameters in some steps. All ranks call `end` for the same steps."""

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        self._named = [(name, p) for name, p in named if p.requires_grad and not p.is_sparse]
        self._alike: bool | None = None
        self._sums: dict[int, Tensor] = {}
        self._sample: list[tuple[str, nn.Parameter]] = []
        self._handles: list[Any] = []
        self._step = 0

    @staticmethod
    def looks_at(step: int) -> bool:
        return step <= FIRST or step % EVERY == 0

    def begin(self, step: int) -> None:
        """Before every forward of a step, the first of which counts. Calls no collective: a rank may have no batch."""
        if step == self._step:
            return  # one more micro-step
        self.leave()  # a step that was skipped was not looked at
        self._step = step
        if not self.looks_at(step) or self._alike is False or _world() == 1:
            return
        self._sample = self._chosen(step)
        for _, parameter in self._sample:
            self._handles.append(parameter.register_hook(self._adder(parameter)))

    def end(self, step: int, gradients: Gradients, again: Again) -> Look | None:
        """Before the optimizer's step, which will use `gradients`. `again` computes this rank's own once more."""
        if not self.looks_at(step) or not self._comparable():
            return None
        sample, sums = self._sample, self._sums
        self.leave()
        held = {id(parameter): gradient for parameter, gradient in gradients}
        applied = [held[id(p)] for _, p in sample if id(p) in held]
        local = [sums[id(p)] for _, p in sample if id(p) in sums]
        (missing,) = agree(not sample or len(applied) < len(sample) or len(local) < len(sample))
        if missing:
            return None
        off = [_distance(a, m) for a, m in zip(applied, _mean_over_ranks(local), strict=True)]
        alone = [_distance(a, g) for a, g in zip(applied, local, strict=True)]
        apart = [_distance(a, m) for a, m in zip(applied, _mean_over_ranks(applied), strict=True)]
        not_reduced, unsound = agree(max(alone) <= OFF, not all(map(math.isfinite, [*off, *alone, *apart])))
        if not_reduced or unsound:  # each rank trains for itself, or the step is bad in another way
            return None
        worst, unlike = _largest(max(off)), _largest(max(apart))
        if worst < FOREIGN and unlike <= OFF:
            worst = min(worst, unlike)
        if worst <= OFF:
            return Look(worst=worst, looked_at=len(sample))
        names = [name for (name, _), distance in zip(sample, off, strict=True) if distance > OFF]
        once_more = _or_none(again, [p for _, p in sample])
        same = all(torch.equal(a, b) for a, b in zip(once_more, local, strict=True)) if once_more else None
        return Look(worst=worst, names=names, looked_at=len(sample), repeats=same)

    def leave(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._sample, self._sums = [], {}

    def _comparable(self) -> bool:
        """Whether several ranks train the same parameters: asked once, by a collective of fixed size."""
        if _world() == 1:
            return False  # asked again: a process group may yet come
        if self._alike is None:
            parameters = [p for _, p in self._named]
            shapes = hash(tuple((len(p.shape), *p.shape, str(p.dtype).count("6")) for p in parameters)) % 2**31
            spread = is_spread(parameters) or not parameters or len({p.device for p in parameters}) > 1
            low = -_largest(-float(shapes))
            high = _largest(float(shapes))
            self._alike = not agree(spread)[0] and low == high
        return self._alike

    def _chosen(self, step: int) -> list[tuple[str, nn.Parameter]]:
        start = (step * 7) % len(self._named)
        chosen, elements = [], 0
        for name, parameter in [*self._named[start:], *self._named[:start]]:
            if elements + parameter.numel() <= ELEMENTS:
                chosen.append((name, parameter))
                elements += parameter.numel()
        return chosen

    def _adder(self, parameter: nn.Parameter) -> Callable[[Tensor], None]:
        def add(gradient: Tensor) -> None:
            known = self._sums.get(id(parameter))
            self._sums[id(parameter)] = gradient.detach().clone() if known is None else known + gradient.detach()

        return add


def _world() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _largest(value: float) -> float:
    device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
    shared = torch.tensor([value], dtype=torch.float64, device=device)
    torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
    return float(shared)


def _mean_over_ranks(tensors: list[Tensor]) -> list[Tensor]:
    flat = torch.cat([t.reshape(-1).float() for t in tensors])
    torch.distributed.all_reduce(flat)
    flat /= torch.distributed.get_world_size()
    return [part.view_as(t) for part, t in zip(flat.split([t.numel() for t in tensors]), tensors, strict=True)]


def _distance(applied: Tensor, expected: Tensor) -> float:
    """Relative L2 distance after the best common factor; 0 where nothing was expected and nothing is there."""
    a, e = applied.detach().double().flatten(), expected.double().flatten()
    square = float(e @ e)
    if square == 0:
        return 0.0 if not bool(a.any()) else 1.0
    factor = float(a @ e) / square
    size = float(a.norm())
    return float((a - factor * e).norm()) / size if size > 0 else 0.0


def _or_none(again: Again, parameters: list[nn.Parameter]) -> list[Tensor] | None:
    try:
        return again(parameters)
    except Exception:  # a step that cannot be run again says nothing
        return None
