"""Whether gradients were written to: how often each was, by torch's own count."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from finitune.monitor.probes.ranks import local

Gradients = tuple[list[int], list[int]]
"""Of each gradient that is there its identity, and how often it was written to."""
NO_GRADIENTS: Gradients = ([], [])
ALL, SOME = 2048, 64
"""Parameters of which every gradient is compared, where all are to be and where some are; of more a sample, evenly
spaced.
"""


def gradients_now(parameters: Sequence[Tensor], most: int = ALL) -> Gradients:
    stride = -(-len(parameters) // most) or 1
    return versions_of([gradient for p in parameters[::stride] if (gradient := p.grad) is not None])


def any_gradient(gradients: Gradients) -> bool:
    return bool(gradients[0])


def versions_of(gradients: Sequence[Tensor]) -> Gradients:
    return list(map(id, gradients)), [g._version if type(g) is Tensor else _writes(g) for g in gradients]


def _writes(gradient: Tensor) -> int:
    """What a program writes to a shard is not counted by the tensor that is sharded, nor the other way round."""
    shard = local(gradient)
    return gradient._version + (shard._version if shard is not gradient else 0)
