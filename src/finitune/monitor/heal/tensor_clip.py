"""Gradients clipped tensor by tensor, each to what it usually is, around any optimizer.

AdaGC (arXiv 2502.11034): a tensor's gradient is scaled down to `RELATIVE` times the running mean of its clipped norms,
whose memory is `MEMORY`. Small batches are noisier than those of pretraining, so twice the usual is let through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

RELATIVE, MEMORY = 2.0, 0.98


@dataclass(slots=True, kw_only=True)
class TensorClip:
    """The usual norm of each tensor, in the order in which the optimizer holds them."""

    usual: dict[int, float] = field(default_factory=dict[int, float])

    @torch.no_grad()
    def clip(self, gradients: Sequence[Tensor | None]) -> None:
        """Scale down in place what is beyond its usual; a tensor that had no gradient so far is left as it is."""
        known = [(place, gradient) for place, gradient in enumerate(gradients) if gradient is not None]
        if not known:
            return
        norms = torch.stack([torch.linalg.vector_norm(gradient.detach().float()) for _, gradient in known]).tolist()
        for (place, gradient), norm in zip(known, norms, strict=True):
            usual = self.usual.get(place, 0.0)
            limit = RELATIVE * usual if usual else norm
            if norm > limit:
                gradient.mul_(limit / norm)
            self.usual[place] = MEMORY * usual + (1 - MEMORY) * min(norm, limit) if usual else norm
