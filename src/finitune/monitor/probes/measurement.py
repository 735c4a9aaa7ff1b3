"""What is measured of one optimizer step: its losses, the norm of every gradient, the loss scale.

All of it stays on the device until it is read together: one transfer and at most one collective per step. Where the
optimizer itself can take the verdict on the device, nothing waits for that transfer, and it is read a step later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from operator import sub
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from finitune.finding import Origin
from finitune.monitor.probes.finite import are_finite, as_real, is_finite, largest, norms, values_of
from finitune.monitor.probes.gradient_versions import Gradients, versions_of
from finitune.monitor.probes.ranks import ALONE, Group, copies, whole

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(slots=True)
class EachNorm:
    """The norms that clipping measured, each of shape []."""

    identities: list[int] = field(default_factory=list[int])
    """Of the gradients."""
    norms: list[Tensor] = field(default_factory=list[Tensor])
    by_gradient: dict[int, Tensor] = field(default_factory=dict[int, Tensor])
    """The same, as soon as those of some of the gradients are asked for."""
    devices: set[torch.device] = field(default_factory=set[torch.device])

    def add(self, gradients: Sequence[Tensor], found: Sequence[Tensor]) -> None:
        """`found` are the norms of `gradients`, all on one device."""
        self.identities += map(id, gradients)
        self.norms += found
        self.devices.add(found[0].device)

    def of(self, identities: list[int]) -> list[Tensor] | None:
        """Of these gradients; None where one was not measured, or they lie on several devices."""
        if len(self.devices) != 1:
            return None
        if self.identities == identities:
            return self.norms
        self.by_gradient = self.by_gradient or dict(zip(self.identities, self.norms, strict=True))
        known = [norm for norm in map(self.by_gradient.get, identities) if norm is not None]
        return known if len(known) == len(identities) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclipped:
    """The gradients right before clipping, which spreads one bad value to all of them."""

    norms: Tensor
    total: Tensor | None
    """The norm that clipping measured, shape []; None where it lies in parts on several ranks."""
    seen: Gradients
    writes: int = 1
    """How often this clipping changes a gradient in place, at most."""
    max_norm: float | None = None
    peaks: Tensor | None = None
    """Largest magnitudes, where clipping by value hides what was infinite."""
    scaled: bool = False
    """They carried the loss scale of a GradScaler."""
    half: bool = True
    """Some of them may be float16: their norms are never taken over from clipping."""

    @staticmethod
    def of(gradients: Sequence[Tensor], total: Tensor | None, each: EachNorm, *, scaled: bool = False) -> Unclipped:
        """`each` holds the norms that clipping measured."""
        total_here = None if total is None or hasattr(total, "full_tensor") else total.detach()
        seen = versions_of(gradients)
        known = each.of(seen[0])
        own = norms(gradients) if known is None else torch.stack(known).to(torch.float32)
        return Unclipped(norms=own, total=total_here, seen=seen, scaled=scaled, half=known is None)

    @staticmethod
    def by_value(gradients: Sequence[Tensor]) -> Unclipped:
        each = norms(gradients)
        return Unclipped(
            norms=each, total=_total(each), seen=versions_of(gradients), writes=2, peaks=largest(gradients)
        )

    def with_limit(self, max_norm: float) -> Unclipped:
        """The same, with the norm that the gradients are clipped to."""
        return replace(self, max_norm=max_norm)

    def only_clipped(self, gradients: Sequence[Tensor]) -> bool:
        """True when clipping is all that has happened to them since."""
        (identities, earlier), (now, later) = self.seen, versions_of(gradients)
        writes = list(map(sub, later, earlier))
        return now == identities and min(writes, default=0) >= 0 and max(writes, default=0) <= self.writes

    def is_among_edits(self, left: Gradients, now: Gradients) -> bool:
        """Something else has changed gradients as well, since the backward `left` them or after the clipping."""
        measures = self.max_norm is None and self.peaks is None  # and changes none
        seen, writes = dict(zip(*self.seen, strict=True)), 0 if measures else self.writes
        before = (version != seen.get(identity, version) for identity, version in zip(*left, strict=True))
        after = (version - seen.get(identity, version) > writes for identity, version in zip(*now, strict=True))
        return any(before) or any(after)


MOST_MODULES = 1024
"""Of which the gradients of a bad step are recorded."""
ASKS = "asks"
"""Among the further signals: how many ranks have seen an incident of finite numbers, for all to look into together."""
SPOILS = "spoils"
"""Among the further signals: the update itself would not be finite."""
UNDONE = "undone"
"""Among the further signals: on what share of the ranks the update before was taken back after it."""


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
    bad_loss: bool
    """On this rank or another of the group, as is the next."""
    bad_gradients: bool
    own_bad: bool = True
    """On this rank."""
    clip_factor: float | None = None
    clipped_by_value: bool = False
    zero_gradients: float | None = None
    more: Mapping[str, float] = field(default_factory=dict[str, float])
    """Further signals that were due in this step."""
    parameters: Sequence[Tensor] = ()
    """To which the gradients belong, in the same order."""
    spoilt: Sequence[Tensor] = ()
    """Parameters that the update made bad."""
    made_by: Origin | None = None
    """The operator of the update that did."""
    skipped: bool = False
    scaler_spent: tuple[str, str] | None = None
    """What the loop's own scaler lacks to settle this overflow, and the same in words, where that is known."""
    reduction_error: float | None = None

    @property
    def bad(self) -> bool:
        return self.bad_loss or self.bad_gradients or self.bad_update

    @property
    def bad_update(self) -> bool:
        """Loss and gradients are finite, what the optimizer would make of them is not."""
        return bool(self.more.get(SPOILS)) and not self.bad_loss and not self.bad_gradients

    @property
    def at_fault(self) -> tuple[bool, bool]:
        """Is the loss of this rank not finite; is anything on it? A reduction spreads bad gradients to each."""
        return not all(map(math.isfinite, self.losses)), self.own_bad

    @property
    def loss(self) -> float:
        return sum(self.losses) / self.scale if self.losses else math.nan

    @property
    def what(self) -> str:
        if self.bad_update:
            return "the update is not finite" + (", although loss and gradients are" if len(self.norms) else "")
        if not self.own_bad:
            return "loss or gradients of another rank are not finite"
        if self.losses and not math.isfinite(self.loss):
            return f"loss is {self.loss}"
        count = int((~torch.isfinite(self.norms)).sum())
        where = f"{count} of {len(self.norms)} tensors" if count else "those of another rank"
        return f"gradients are not finite ({where})"


NOTHING_MEASURED = Reading(
    step=0, losses=(), norms=torch.zeros(0), scale=1.0, grad_norm=math.nan, bad_loss=False, bad_gradients=False
)


@dataclass(slots=True, kw_only=True)
class Measured:
    """A step as it lies on the device. `read` brings it to the host."""

    step: int
    gradients: Sequence[Tensor]
    norms: Tensor
    values: Tensor
    """Shape [n], float64 where the device has it: flags, losses, total, scale, further signals."""
    losses: int
    names: tuple[str, ...]
    scaled: bool
    has_scale: bool
    unclipped: Unclipped | None
    group: Group
    extra: Tensor | None = None
    """What was summed over the ranks besides."""

    @property
    def flag(self) -> Tensor:
        """1.0 where the update must be discarded, on every rank alike: shape [], float32, on the device."""
        bad = self.values[:2].sum()
        if SPOILS in self.names:
            bad = bad + self.values[6 + self.losses + self.names.index(SPOILS)]
        return (bad > 0).to(torch.float32)

    def read(self, values: Sequence[float] | None = None) -> Reading:
        """What was measured; `values` are those of `self.values` where they are on the host already."""
        values = self.values.tolist() if values is None else values
        bad_loss, bad_gradients, own_bad, zero, total, scale = values[:6]
        losses = tuple(values[6 : 6 + self.losses])
        scale = max(scale, 1e-45)
        clip = self.unclipped.max_norm if self.unclipped else None
        if bad_gradients > 0 and math.isfinite(total):  # of shards, the sum leaves out what is not finite
            total = math.nan
        norm = total / (scale if self.scaled else 1.0)
        return Reading(
            step=self.step,
            losses=losses,
            norms=self.norms,
            scale=scale if self.has_scale else 1.0,
            grad_norm=norm,
            bad_loss=bad_loss > 0,
            bad_gradients=bad_gradients > 0,
            own_bad=own_bad > 0,
            clip_factor=None if clip is None or not math.isfinite(total) else min(1.0, clip / (total + 1e-6)),
            zero_gradients=zero,
            more=dict(zip(self.names, values[6 + self.losses :], strict=True)),
            clipped_by_value=self.unclipped is not None and self.unclipped.peaks is not None,
        )


def _unseen(measures: _Function) -> _Function:
    """By dispatch modes, as one that watches the step operator by operator: what is measured is no part of it."""

    @wraps(measures)
    def measured(*args: Any, **kwargs: Any) -> Any:
        if not torch._C._len_torch_dispatch_stack():
            return measures(*args, **kwargs)
        with _disable_current_modes():
            return measures(*args, **kwargs)

    return cast(_Function, measured)


@_unseen
def measure(
    step: int,
    roots: Sequence[Tensor],
    gradients: Sequence[Tensor],
    unclipped: Unclipped | None,
    *,
    scale: Tensor | float | None,
    scaled: bool,
    group: Group = ALONE,
    shares: Tensor | None = None,
    more: Mapping[str, Tensor | float] | None = None,
    exact: bool = False,
    extra: Tensor | None = None,
    replicas: Tensor | None = None,
    asks: bool | None = None,
) -> Measured:
    """Measure a step. All ranks of `group` call it for the same step.

    `roots` are the scalar losses, `scaled` says whether the gradients still carry the loss `scale`, `shares` is what
    this rank's norms count for in the whole (see `shares_of`). With `exact` the flag is right even where squares
    overflow float32, at the price of a second read; else whoever finds a bad norm looks at the elements. `extra`,
    shape [m], is summed over the ranks in the same collective; `replicas`, shape [], is a sum over weights that are
    the same on all ranks, whose distance becomes the signal `replica_error`. `asks` says whether this rank has seen an
    incident that all are to look into; None where they do not.
    """
    more = dict(more or {})
    reuse = unclipped is not None and unclipped.only_clipped(gradients)
    each = unclipped.norms if unclipped is not None and reuse else norms(gradients)
    device = each.device
    number = torch.float64 if device.type in ("cpu", "cuda") else torch.float32
    place = partial(_scalar, device=device, dtype=number)
    losses = [place(root) for root in roots]
    known = None if unclipped is None else unclipped.total
    total = _total(each if shares is None else each * shares) if known is None else place(known)
    # A finite number times 0 is 0, another is NaN. On a device each operator is a launch, and these run in every step.
    bad_loss = torch.stack(losses).mul(0).sum() if losses else place(0.0)
    bad_gradients = (largest(gradients) if exact else each).mul(0).sum()
    bad_gradients = bad_gradients if known is None else bad_gradients + total * 0
    flags = (torch.stack([bad_loss, bad_gradients.to(number)]) != 0).to(number)
    own = flags.amax()
    if group.size > 1 and group.known:
        parts = group.sharded and known is None  # else every rank has the norm of the whole
        squares = torch.nan_to_num(total.square().to(number), posinf=0.0) if parts else place(0.0)
        own_sum = place(0.0 if replicas is None else replicas)
        spoils, undone = place(more.get(SPOILS, 0.0)), place(more.get(UNDONE, 0.0))
        own = torch.maximum(own, (spoils > 0).to(number))
        asked = [] if asks is None else [place(float(asks))]
        shared = group.reduced(torch.cat([
            flags, torch.stack([squares, own_sum, own_sum.square(), spoils, undone, *asked]),
            *([] if extra is None else [extra.to(number)]),
        ]))  # fmt: skip
        flags, total = shared[:2], shared[2].sqrt() if parts else total
        extra = None if extra is None else shared[7 + len(asked) :]
        more |= {SPOILS: shared[5], UNDONE: shared[6] / group.size, **({ASKS: shared[7]} if asked else {})}
        if replicas is not None:
            mean, square = shared[3] / group.size, shared[4] / group.size
            more["replica_error"] = (square - mean.square()).clamp_min(0).sqrt() / mean.abs().clamp_min(1e-30)
    zero = (each == 0).to(number).mean() if len(each) else place(0.0)
    values = torch.cat([flags, torch.stack([
        own, zero, total.to(number), place(1.0 if scale is None else scale),
        *losses, *(place(value) for value in more.values()),
    ])])  # fmt: skip
    return Measured(
        step=step, gradients=gradients, norms=each, values=values, losses=len(losses), names=tuple(more),
        scaled=scaled, has_scale=scale is not None, unclipped=unclipped, group=group, extra=extra,
    )  # fmt: skip


def shares_of(gradients: Sequence[Tensor], group: Group, device: torch.device) -> Tensor | None:
    """Shape [gradients]: a norm that n ranks have alike counts 1/sqrt(n) in each; None where nothing is sharded."""
    if not group.sharded:
        return None
    return torch.tensor([copies(g, group.size) for g in gradients], device=device).rsqrt()


def confirmed(reading: Reading, measured: Measured) -> Reading:
    """The reading with its gradients judged by their elements: finite ones may have squares that overflow float32. All
    ranks of the group call it for the same step; where gradients are suspected, they agree once more.
    """
    if not reading.bad_gradients:
        return reading
    group = measured.group
    found = _bad_elements(reading, measured)
    (anywhere,) = group.agree(found, device=measured.norms.device)
    if anywhere:
        return reading
    number = measured.values.dtype
    squares = sum(_square(g) / (copies(g, group.size) if group.sharded else 1.0) for g in measured.gradients)
    if group.sharded:
        squares = float(group.reduced(torch.tensor([squares], dtype=number, device=measured.norms.device)))
    reading.grad_norm = math.sqrt(squares) / (reading.scale if measured.scaled else 1.0)
    reading.bad_gradients = False
    reading.own_bad = reading.bad_loss
    return reading


def _bad_elements(reading: Reading, measured: Measured) -> bool:
    """Whether an element of this rank's own gradients is not finite, or nothing else explains the verdict."""
    peaks = measured.unclipped.peaks if measured.unclipped is not None else None
    if peaks is not None and not bool(torch.isfinite(peaks).all()):
        return True
    norms = reading.norms.tolist()
    doubtful = [g for g, norm in zip(measured.gradients, norms, strict=True) if not math.isfinite(norm)]
    alone = measured.group.size == 1 or not measured.group.known
    return not are_finite(doubtful) or (alone and not doubtful)


def _square(gradient: Tensor) -> float:
    return float(torch.linalg.vector_norm(as_real(values_of(gradient)), dtype=torch.float64)) ** 2


def any_bad(roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> bool:
    """The verdict alone, by the plainest means, where measuring failed."""
    return not all(is_finite(tensor) for tensor in [*roots, *gradients])


def of_modules(norms: Iterable[tuple[str, float]], scale: float) -> list[dict[str, Any]]:
    """The gradient norm of each module, in the order of its first parameter, without the loss scale; and how many of
    its tensors are not finite. `norms` holds the name of a parameter and the norm of its gradient.
    """
    found: dict[str, list[float]] = {}
    for name, norm in norms:
        found.setdefault(name.rpartition(".")[0], []).append(norm / scale)
    return [
        {
            "module": module,
            "norm": math.hypot(*filter(math.isfinite, own)),
            "nonfinite": sum(not math.isfinite(norm) for norm in own),
        }
        for module, own in list(found.items())[:MOST_MODULES]
    ]


def _scalar(value: Tensor | float, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.full((), value, device=device, dtype=dtype)
    return whole(value.detach()).reshape(()).to(device, dtype, non_blocking=True)


def _total(each: Tensor) -> Tensor:
    """Norm of norms, shape [], which neither overflows nor underflows where the device has no float64."""
    if each.device.type in ("cpu", "cuda"):
        return torch.linalg.vector_norm(each, dtype=torch.float64)
    peak = each.abs().max().clamp_min(1e-38) if len(each) else each.new_ones(())
    return torch.linalg.vector_norm(each / peak) * peak
