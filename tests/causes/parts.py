"""Facts that several tables of causes are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from finitune.facts import EmbeddingRows, Hardware, Labels, Parallel, Precision, TensorScan, TokenUse, Weights
from finitune.finding import Origin
from finitune.series import Series

HALF, BRAIN = Precision(compute="float16"), Precision(compute="bfloat16")
V100, A100 = Hardware(name="V100", bfloat16=False), Hardware(name="A100", bfloat16=True)
H100, APPLE = Hardware(name="H100", bfloat16=True), Hardware(name="Apple MPS", bfloat16=True)
BAD = {"nonfinite-loss"}
NAN, INF = float("nan"), float("inf")


def zero(stage: int = 2, **more: Any) -> Parallel:
    return Parallel(kind="deepspeed", zero_stage=stage, source="ds.json", **more)


def tensor(name: str = "a.weight", *, shape: tuple[int, ...] = (4, 4), peak: float = 1.0, **more: Any) -> TensorScan:
    given = {"dtype": "bfloat16", "nonfinite": 0, "rms": peak, **more}
    return TensorScan(name=name, shape=shape, peak=peak, **given)


def scanned(*tensors: TensorScan, **more: Any) -> Weights:
    return Weights(tensors=tensors, source="dir", **more)


def use(first: Mapping[int, int], later: Mapping[int, int] | None = None, **more: Any) -> TokenUse:
    """Ids with how often they begin a sequence, and ids that only come later."""
    counts = {**first, **(later or {})}
    given = {"sequences": 10, "names": {6: "<|im_start|>"}, "source": "d.jsonl", **more}
    return TokenUse(
        ids=np.array(list(counts)), counts=np.array(list(counts.values())),
        first=np.array([first.get(one, 0) for one in counts]), **given,
    )  # fmt: skip


def rows(
    sizes: Mapping[int, float], *, lost: Mapping[int, float] | None = None, twins: Mapping[int, int] | None = None,
    usual: float = 0.02, apart: float = 0.0,
) -> EmbeddingRows:  # fmt: skip
    """Twenty rows of the usual length, `apart` from one another, but for those of these sizes."""
    rms = np.asarray(usual + apart * np.arange(20), np.float64)
    gone, copies = np.zeros(20), np.zeros(20, np.int64)
    for array, given in ((rms, sizes), (gone, lost or {}), (copies, twins or {})):
        for row, value in given.items():
            array[row] = value
    return EmbeddingRows(
        tensor="model.embed_tokens.weight", ids=np.arange(20), rms=rms, median_rms=float(np.median(rms)),
        lost_in_cast=gone, dtype="bfloat16", file="model.safetensors", twins=copies if twins else None,
    )  # fmt: skip


def labels(*supervised: int, **more: Any) -> Labels:
    """Of a batch, unless `more` says of which file."""
    return Labels(supervised=np.array(supervised), **more)


def origin(op: str = "aten.mm", phase: Any = "forward", dtype: str = "float16", **more: Any) -> Origin:
    return Origin(**{"module": "model.layers.1.mlp", "op": op, "phase": phase, "dtype": dtype, **more})


def series(*values: float) -> Series:
    return Series(range(1, len(values) + 1), values)
