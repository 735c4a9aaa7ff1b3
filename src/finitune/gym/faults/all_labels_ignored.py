"""One batch has no target at all: every label is -100, so the mean over targets is 0/0.

This is what truncation leaves of a prompt longer than the context when only the answer is trained on.
"""

from __future__ import annotations

from pathlib import Path

from torch.optim import AdamW

from finitune.finding import Origin
from finitune.gym.data import batches
from finitune.gym.loop import Dtype, Options, Run, prepare
from finitune.gym.models import tiny

cause = "all-labels-ignored"
step = 5
DTYPES: dict[str, Dtype] = {"llama": "float32", "qwen2": "bfloat16-autocast", "gpt2": "float32"}
origins = dict.fromkeys(DTYPES, Origin(module="", op="aten.nll_loss_forward", phase="forward", dtype="float32"))


def build(family: str, directory: Path) -> Run:  # noqa: ARG001
    data = batches(12)
    for batch in data:
        batch["labels"][:, :16] = -100
    data[step - 1]["labels"].fill_(-100)
    options = Options(dtype=DTYPES[family])
    return prepare(tiny(family), data, lambda parameters: AdamW(parameters, lr=1e-3), options)
