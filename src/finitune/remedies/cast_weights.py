"""Store the weights in another dtype: a copy of the model, whole or for some modules.

## What it changes

In a copy of the model directory, the dtype of every floating tensor, or of those of the named modules; their numbers
are rounded to nearest even. The dtype in `config.json` follows where every tensor was cast. To float32 nothing is
lost. To float16 what exceeds 65504 would become infinite: then nothing is written and the tensors are named. What
becomes zero is counted, tensor by tensor.

## When it is safe

To float32 always; the copy takes twice the room. It is what training in mixed precision wants of weights that a
library loads in the dtype in which they lie. To float16 when nothing overflows and little vanishes; the cast of
weights says nothing of activations, which may still overflow.

## References

huggingface/transformers#23165 (float16 weights under a loss scaler), PEFT's page on troubleshooting; IEEE 754 for the
rounding.
"""

from __future__ import annotations

import shlex
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from finitune.facts import Adapter, Model, Optimizer
from finitune.finding import Remedy

safety = "safe"  # what is proposed is to float32; to a narrower dtype, what is lost is counted
rewrites = "weights"

TARGETS: dict[str, npt.DTypeLike] = {
    "float64": np.float64, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
}  # fmt: skip
"""What a tensor may be cast to, as torch spells it."""


def propose(
    model: Model | None = None, optimizer: Optimizer | None = None, adapter: Adapter | None = None
) -> Remedy | None:
    """To float32, where weights that are trained lie in float16."""
    beside = (adapter is not None and adapter.kind not in (None, "none")) or bool(optimizer and optimizer.lora)
    if model is None or not model.path or model.dtype != "float16" or beside:
        return None
    output = model.path.rstrip("/") + "-float32"
    command = ["finitune", "repair", "cast-weights", "--model", model.path, "--dtype", "float32", "--output", output]
    return Remedy(command=shlex.join(command))


def apply(values: npt.NDArray[Any], dtype: str) -> tuple[npt.NDArray[Any], int, int]:
    """The numbers in `dtype`; how many finite ones became infinite, and how many that were not zero became zero."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        cast = values.astype(TARGETS[dtype])
        wide = cast.astype(np.float64)
    overflow = np.count_nonzero(np.isfinite(values) & ~np.isfinite(wide))
    vanished = np.count_nonzero((values != 0) & (wide == 0))
    return cast, int(overflow), int(vanished)
