"""Is this tensor finite, and if not, where."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from finitune.monitor.probes.ranks import local


def norms(tensors: list[Tensor]) -> Tensor:
    """L2 norm of each tensor, accumulated in float32: shape [len(tensors)], on the first tensor's device.

    One fused read of every byte. A NaN or infinity anywhere in a tensor makes its norm non-finite, so the
    norms carry the finite test as well (a finite tensor whose norm exceeds 3.4e38 reads as infinite too:
    no optimizer could square it either). Non-floating tensors count as finite; of a DTensor the local shard is read.
    """
    if not tensors:
        return torch.zeros(0)
    dense = [_values(t) for t in tensors]
    device = dense[0].device
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, tensor in enumerate(dense):
        groups.setdefault((tensor.device, tensor.dtype), []).append(i)
    out: list[Tensor] = [torch.zeros((), device=device)] * len(tensors)
    for (_, dtype), indices in groups.items():
        if not dtype.is_floating_point:
            continue
        accumulate = torch.float64 if dtype == torch.float64 else torch.float32
        found = torch._foreach_norm([dense[i] for i in indices], 2, dtype=accumulate)
        for i, norm in zip(indices, found, strict=True):
            out[i] = norm.to(device=device, dtype=torch.float32)
    return torch.stack(out)


def is_finite(tensor: Tensor) -> bool:
    """True when every element is finite. Reads the tensor once where all is well."""
    tensor = _values(tensor).detach()
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    accumulate = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    if bool(torch.isfinite(tensor.sum(dtype=accumulate))):
        return True
    return bool(torch.isfinite(tensor).all())  # a sum of finite numbers may overflow by itself


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


def places(tensor: Tensor, limit: int = 4096) -> Places:
    """Count and locate the non-finite elements."""
    tensor = _values(tensor).detach()
    finite = torch.isfinite(tensor)
    peak = torch.where(finite, tensor, torch.zeros_like(tensor)).abs().amax() if tensor.numel() else torch.zeros(())
    return Places(
        nan=int(torch.isnan(tensor).sum()),
        inf=int(torch.isposinf(tensor).sum()),
        minus_inf=int(torch.isneginf(tensor).sum()),
        indices=torch.nonzero(~finite)[:limit].tolist(),
        peak=float(peak),
    )


def _values(tensor: Tensor) -> Tensor:
    """The stored values of a sparse tensor, this rank's shard of a DTensor; any other tensor as it is."""
    tensor = local(tensor)
    return tensor.coalesce().values() if tensor.is_sparse else tensor
