"""A language model held and trained in bfloat16 at a rate whose updates round away."""

from __future__ import annotations

import torch

from finitune.gym.data import batches
from finitune.gym.loop import Options, prepare
from finitune.gym.models import tiny

STEPS = 96


def in_bfloat16(rate=2e-5, steps=STEPS, dtype="bfloat16", seed=0, family="llama"):
    model = tiny(family, hidden=32, vocabulary=128, seed=seed, initializer_range=0.3)
    data = batches(steps, rows=4, length=16, vocabulary=128, seed=seed)
    return prepare(model, data, lambda p: torch.optim.AdamW(p, lr=rate), Options(dtype=dtype))
