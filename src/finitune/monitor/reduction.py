"""Are gradients reduced over ranks as they should be? A sample is compared with an all-reduce of our own.

A hook on every parameter adds up a slice of the gradient that this rank computes, before any reduction. Right before
the optimizer's step the average of these slices over ranks, taken by one blocking all-reduce, must be what lies in
`.grad`, up to one factor per tensor (sum or mean, clipping, a loss scale). A reduction that was overwritten or mixed
with another bucket is not, and leaves ranks with different gradients, or with those of another tensor. Where all have
the same, not far off, the loop itself changed them. A tensor that is never reduced belongs to its rank (experts,
tensor parallelism). Only where every rank trains the whole model; not gradients of sparse layout, as of a sparse
embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from finitune.monitor.probes.finite import as_real
from finitune.monitor.probes.ranks import Group

Gradients = Sequence[tuple[Tensor, Tensor]]
Again = Callable[[list[Any]], list[Tensor]]

FIRST, EVERY = 5, 50
"""Steps that are looked at: the first ones, and then one of so many."""
ELEMENTS = 2**18
"""In one look, spread evenly over all tensors."""
LEAST = 64
OFF = 0.02
"""Relative distance. Reduction in bfloat16 rounds by 2**-8 per element; a bucket that was overwritten is off by 0.1
to 1 (measured in the example of MedicalGPT)."""
FOREIGN = 0.95
"""Next to nothing of what was computed is left: clipping each value, noise or a projection leave more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What would be applied beside what an independent all-reduce gives."""

    worst: float
    """Largest relative distance over the tensors looked at, on this rank."""
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
    """Looks at every tensor in some steps. All ranks of the group call `end` for the same steps."""

    def __init__(self, named: Sequence[tuple[str, Tensor]], group: Group) -> None:
        self._named = [(name, p) for name, p in named if p.requires_grad and p.layout == torch.strided and p.numel()]
        self._group = group
        self._total = sum(p.numel() for _, p in self._named)
        self._sums: dict[int, Tensor] = {}
        self._handles: dict[int, Any] = {}
        self._step = 0
        self._never_reduced: set[str] | None = None
        self._local: list[Tensor] = []
        self._applied: list[Tensor] = []

    @staticmethod
    def looks_at(step: int) -> bool:
        return step <= FIRST or step % EVERY == 0

    def begin(self, step: int) -> None:
        """Before every backward of a step. Calls no collective. A parameter that is frozen now, as those of a critic
        while the generator is trained, gets nothing of it.
        """
        if step != self._step:
            self.leave()  # a step that was skipped was not looked at
            self._step = step
        if self.looks_at(step):
            more = (p for _, p in self._named if p.requires_grad and id(p) not in self._handles)
            self._handles |= {id(p): p.register_hook(self._adder(p)) for p in more}

    def flat(self, step: int, gradients: Gradients) -> Tensor | None:
        """What is to be summed over the ranks, of the same length on each; None in a step that is not looked at."""
        if not self.looks_at(step) or not self._named:
            return None
        sums = self._sums
        self.leave()
        held = {id(parameter): gradient for parameter, gradient in gradients if gradient.layout == torch.strided}
        empty = [self._slice(p).float() * 0 for _, p in self._named]
        self._applied = [self._slice(held[id(p)]).float() if id(p) in held else e
                         for (_, p), e in zip(self._named, empty, strict=True)]  # fmt: skip
        self._local = [
            sums[id(p)].float() if id(p) in sums else e for (_, p), e in zip(self._named, empty, strict=True)
        ]
        return torch.cat([*self._local, *self._applied])

    def unknown(self, step: int) -> Tensor | None:
        """In the place of `flat` where that failed, of the same length: NaN, of which no rank judges anything."""
        if not self.looks_at(step) or not self._named:
            return None
        self.leave()
        self._local = self._applied = [
            torch.full_like(self._slice(p), math.nan, dtype=torch.float32) for _, p in self._named
        ]
        return torch.cat([*self._local, *self._applied])

    def judge(self, summed: Tensor, again: Again) -> Look | None:
        """What `flat` came to over all ranks. `again` computes this rank's own gradient once more."""
        local, applied = self._local, self._applied
        self._local, self._applied = [], []
        parts = (summed / self._group.size).float().split([len(t) for t in [*local, *applied]])
        means, averages = parts[: len(local)], parts[len(local) :]
        figures = torch.stack([
            *map(_distance, applied, means), *map(_distance, applied, local), *map(_distance, applied, averages),
            torch.stack([part.any() for part in local]).any().to(summed),
        ]).tolist()  # fmt: skip
        count, any_gradient = len(local), figures.pop()
        off, alone, apart = figures[:count], figures[count : 2 * count], figures[2 * count :]
        if not any_gradient or not all(map(math.isfinite, figures)):
            return None  # the step is bad in another way
        names = [name for name, _ in self._named]
        own = {name for name, distance in zip(names, alone, strict=True) if distance <= OFF}
        self._never_reduced = own if self._never_reduced is None else self._never_reduced & own
        if len(own) == len(names):
            return None  # each rank trains for itself
        judged = [n for n, name in enumerate(names) if name not in self._never_reduced]
        worst, unlike = max((off[n] for n in judged), default=0.0), max((apart[n] for n in judged), default=0.0)
        if worst < FOREIGN and unlike <= OFF:
            worst = min(worst, unlike)
        if worst <= OFF:
            return Look(worst=worst, looked_at=len(judged))
        once_more = _or_none(again, [p for _, p in self._named])
        same = None
        if once_more:
            dense = [(a, b) for a, b in zip(once_more, local, strict=True) if a.layout == torch.strided]
            same = all(torch.equal(self._slice(a).float(), b) for a, b in dense)
        wrong = [names[n] for n in judged if off[n] > OFF]
        return Look(worst=worst, names=wrong, looked_at=len(judged), repeats=same)

    def leave(self) -> None:
        for handle in self._handles.values():
            handle.remove()
        self._handles, self._sums = {}, {}

    def _slice(self, tensor: Tensor) -> Tensor:
        """Evenly spaced elements: its share of all, and 64 at least."""
        wanted = max(LEAST, ELEMENTS * tensor.numel() // self._total)
        return as_real(tensor.detach()).reshape(-1)[:: max(1, tensor.numel() // wanted)]

    def _adder(self, parameter: Tensor) -> Callable[[Tensor], None]:
        def add(gradient: Tensor) -> None:
            if gradient.layout != torch.strided:  # nor does `flat` look at it
                return
            known = self._sums.get(id(parameter))
            try:
                part = self._slice(gradient)
                self._sums[id(parameter)] = part.clone() if known is None else known + part
            except Exception:  # what is raised here ends the backward
                self._sums[id(parameter)] = torch.full_like(self._slice(parameter), math.nan)

        return add


def _distance(applied: Tensor, expected: Tensor) -> Tensor:
    """Relative L2 distance after the best common factor, shape []; 0 where nothing is applied."""
    number = torch.float64 if applied.device.type in ("cpu", "cuda") else torch.float32
    a, e = applied.detach().to(number), expected.to(number)
    square, size = e @ e, a.norm()
    factor = torch.where(square == 0, 0.0, a @ e / square)  # nothing was expected: all of it is off
    return torch.where(size == 0, 0.0, (a - factor * e).norm() / size)


def _or_none(again: Again, parameters: list[Any]) -> list[Tensor] | None:
    try:
        return again(parameters)
    except Exception:  # a step that cannot be run again says nothing
        return None
