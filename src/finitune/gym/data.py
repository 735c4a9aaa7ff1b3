"""Token sequences with something to learn, for causal language models."""

from __future__ import annotations

import torch
from torch import Tensor

FIRST_WORD = 16
"""Ids below are kept for special tokens; sequences are made of the others."""

Batch = dict[str, Tensor]


def batches(
    count: int, *, rows: int = 4, length: int = 32, vocabulary: int = 512, seed: int = 0, noise: float = 0.2
) -> list[Batch]:
    """Walks through a fixed random permutation of the words, each step with probability `noise` a jump anywhere.

    The permutation is the language and depends on `vocabulary` alone; `seed` chooses the walks. Each batch holds
    input_ids, attention_mask and labels, int64 of shape (rows, length).
    """
    words = vocabulary - FIRST_WORD
    successor = torch.randperm(words, generator=torch.Generator().manual_seed(vocabulary))
    generator = torch.Generator().manual_seed(seed)
    out: list[Batch] = []
    for _ in range(count):
        ids = torch.randint(words, (rows, length), generator=generator)
        jump = torch.rand(rows, length, generator=generator) < noise
        for position in range(1, length):
            ids[:, position] = torch.where(jump[:, position], ids[:, position], successor[ids[:, position - 1]])
        out.append(batch(ids + FIRST_WORD))
    return out


def batch(ids: Tensor) -> Batch:
    """The batch whose labels are its own ids, nothing padded."""
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}
