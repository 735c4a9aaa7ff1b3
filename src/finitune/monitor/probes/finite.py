"""Is this tensor finite, and if not, where."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from finitune.monitor.probes.ranks import local

CHUNK = 2**24
"""Elements that are looked at at once, so that a look at logits needs little memory."""


LARGE = 2**14
"""Elements from which on the ends of a tensor are found faster than its norm."""


def norms(tensors: Sequence[Tensor]) -> Tensor:
    """L2 norm of each tensor, accumulated in float32: shape [len(tensors)], on the first tensor's device.

    One fused read of every byte. A NaN or infinity anywhere in a tensor makes its norm non-finite. The reverse does
    not hold: squares of finite numbers above 1.8e19 overflow float32, so whoever meets a norm that is not finite asks
    `are_finite`. Whole numbers count as finite; of a complex number both parts are read, of a DTensor the local shard.
    """
    return _norms(tensors, 2.0)


def largest(tensors: Sequence[Tensor]) -> Tensor:
    """Largest magnitude in each tensor; NaN or infinite exactly where an element is. Shape and device as of `norms`."""
    return _norms(tensors, float("inf"))


def _norms(tensors: Sequence[Tensor], order: float) -> Tensor:
    if not tensors:
        return torch.zeros(0)
    dense = [as_real(values_of(t)) for t in tensors]
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, tensor in enumerate(dense):
        groups.setdefault((tensor.device, tensor.dtype), []).append(i)
    device = dense[0].device
    out: list[Tensor] = [torch.zeros((), device=device)] * len(tensors)
    for (place, dtype), indices in groups.items():
        if not dtype.is_floating_point:
            continue
        if order != 2.0:  # an empty tensor has no largest element
            indices = [i for i in indices if dense[i].numel()]
        accumulate = torch.float64 if dtype == torch.float64 else torch.float32
        if dtype.itemsize == 1:  # float8 has no arithmetic
            found = [torch.linalg.vector_norm(dense[i].to(torch.float32), order) for i in indices]
        elif order == 2.0 and (place.type, dtype) == ("cpu", torch.bfloat16):
            # Four times as fast there; squares are summed in float32 all the same, and its range is that of float32.
            found = torch._foreach_norm([dense[i] for i in indices], 2)
        elif order == 2.0:
            found = torch._foreach_norm([dense[i] for i in indices], 2, dtype=accumulate)
        elif place.type == "cpu" and sum(dense[i].numel() for i in indices) > LARGE * len(indices):
            # Six times as fast there as the norm, and a NaN is both its ends; but slow to start.
            ends = [dense[i].aminmax() for i in indices]
            found = [torch.maximum(-least, most) for least, most in ends]
        else:
            found = torch._foreach_norm([dense[i] for i in indices], order)
        if not found:
            continue
        each = torch.stack(found).to(device=device, dtype=torch.float32)
        if len(indices) == len(tensors):
            return each
        for i, norm in zip(indices, each.unbind(), strict=True):
            out[i] = norm
    return torch.stack(out)


def has_memory(tensor: Tensor) -> bool:
    """False for what autograd has in place of a gradient of 0: to read it below a dispatch mode ends the process."""
    return not (tensor._is_zerotensor() or tensor.is_meta)


def is_bad_but_for_masks(values: Tensor) -> bool:
    """True where a floating tensor holds NaN or +inf: a -inf alone may be a mask."""
    return bool((values.isnan() | (values == math.inf)).any())


def is_finite(tensor: Tensor) -> bool:
    """True when every element is finite. Reads the tensor once where all is well."""
    if not has_memory(tensor):
        return True
    tensor = as_real(values_of(tensor).detach())
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    if tensor.dtype.itemsize == 1:
        return bool(torch.isfinite(tensor.to(torch.float32)).all())
    accumulate = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    if bool(torch.isfinite(tensor.sum(dtype=accumulate))):
        return True
    return bool(torch.isfinite(tensor).all())  # a sum of finite numbers may overflow by itself


def are_finite(tensors: Sequence[Tensor]) -> bool:
    """Waits once for a device, however many tensors lie there."""
    away = [t for t in tensors if t.device.type != "cpu"]
    if away and not bool(torch.isfinite(largest([t.detach() for t in away])).all()):
        return False
    return all(is_finite(t) for t in tensors if t.device.type == "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """What is non-finite in a tensor: counts by kind, and the first indices, shape [up to `limit`, tensor.dim()]."""

    nan: int
    inf: int
    minus_inf: int
    indices: list[list[int]]
    peak: float
    """Largest finite magnitude; 0.0 when nothing is finite."""

    @property
    def kind(self) -> str:
        return "nan" if self.nan else "inf" if self.inf else "-inf" if self.minus_inf else "finite"

    @property
    def count(self) -> int:
        return self.nan + self.inf + self.minus_inf

    @property
    def in_words(self) -> str:
        """`3 nan, 1 inf`."""
        counts = (("nan", self.nan), ("inf", self.inf), ("-inf", self.minus_inf))
        return ", ".join(f"{count} {kind}" for kind, count in counts if count)


def is_inexact(tensor: Tensor) -> bool:
    """True for dtypes that can hold NaN: floating and complex ones."""
    return tensor.is_floating_point() or tensor.is_complex()


def places(tensor: Tensor, limit: int = 4096) -> Places:
    """Count and locate the non-finite elements, a chunk at a time. A complex number is NaN where a part of it is, else
    infinite where one is.
    """
    tensor = values_of(tensor).detach()
    if tensor.dtype.itemsize == 1 and tensor.is_floating_point():
        tensor = tensor.to(torch.float32)
    flat = tensor.reshape(-1) if tensor.is_contiguous() else tensor.contiguous().view(-1)
    counts, peak, found = [0, 0, 0], 0.0, list[int]()
    for start in range(0, flat.numel(), CHUNK):
        part = flat[start : start + CHUNK]
        finite = torch.isfinite(part)
        peak = max(peak, float(part.abs().masked_fill_(~finite, 0).amax()))
        if bool(finite.all()):
            continue
        for n, kind in enumerate(_COMPLEX_KINDS if part.is_complex() else _KINDS):
            counts[n] += int(kind(part).sum())
        if len(found) < limit:
            found += (torch.nonzero(~finite)[: limit - len(found), 0] + start).tolist()
    indices = [list(place) for place in _unravelled(found, tensor.shape)]
    return Places(nan=counts[0], inf=counts[1], minus_inf=counts[2], indices=indices, peak=peak)


def bad_along(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """Where along these axes, the first of which is 0, some element is not finite: bool, one axis for each of them.

    A part of the first axis is looked at at a time.
    """
    tensor = local(tensor)
    others = tuple(axis for axis in range(tensor.dim()) if axis not in axes)
    size = max(CHUNK // max(tensor[:1].numel(), 1), 1)
    found: list[Tensor] = []
    for part in tensor.split(size):
        if part.is_floating_point() and part.dtype.itemsize == 1:
            part = part.to(torch.float32)
        bad = ~torch.isfinite(part)
        found.append(bad.any(dim=others) if others else bad)
    return torch.cat(found)


def _unravelled(flat: list[int], shape: torch.Size) -> list[list[int]]:
    places: list[list[int]] = []
    for index in flat:
        place: list[int] = []
        for size in reversed(shape):
            index, rest = divmod(index, size)
            place.append(rest)
        places.append(place[::-1])
    return places


def as_real(tensor: Tensor) -> Tensor:
    """Complex numbers as pairs, in one more dimension."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _is_infinite(tensor: Tensor) -> Tensor:
    return ~torch.isfinite(tensor) & ~torch.isnan(tensor)


_KINDS = (torch.isnan, torch.isposinf, torch.isneginf)
_COMPLEX_KINDS = (torch.isnan, _is_infinite)


def values_of(tensor: Tensor) -> Tensor:
    """The stored values of a sparse tensor, this rank's shard of a DTensor; any other tensor as it is."""
    tensor = local(tensor)
    return tensor.coalesce().values() if tensor.is_sparse else tensor
