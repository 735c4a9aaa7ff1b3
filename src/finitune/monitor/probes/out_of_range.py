"""Token ids beyond the embedding, on a device where that ends in an assert after which nothing can be read.

Three small kernels before the forward put the largest id and its place into pinned host memory, where it can be read
after the crash too. Nothing waits for them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Flags:
    """One flag per model call, kept with the call."""

    @staticmethod
    def set(ids: Tensor | None, vocabulary: int | None) -> tuple[Tensor, int, int] | None:
        """Pinned numbers (largest id, its place), the vocabulary and the row length; None where nothing is to flag."""
        if ids is None or vocabulary is None or ids.device.type == "cpu" or not ids.numel():
            return None
        largest = ids.detach().reshape(-1).to(torch.int64).max(dim=0)
        found = torch.stack([largest.values, largest.indices])
        host = torch.empty(2, dtype=torch.int64, device="cpu", pin_memory=True)
        host.copy_(found, non_blocking=True)
        return host, vocabulary, ids.shape[-1] if ids.dim() > 1 else ids.numel()

    @staticmethod
    def read(call: Any) -> list[dict[str, Any]]:
        """The fact of a call whose ids went beyond; nothing where they did not, or it is not known."""
        flag = getattr(call, "range_flag", None)
        if flag is None:
            return []
        host, vocabulary, length = flag
        largest, place = host.tolist()
        if largest < vocabulary:
            return []
        return [{
            "name": "token ids", "token": largest, "vocabulary": vocabulary, "sample": place // length,
            "position": place % length,
        }]  # fmt: skip
