"""Weights -> how far projections behind a layer norm reach, in the encoders of images and sound.

A layer norm puts out a vector of norm sqrt(d) at most and of mean zero, so a row w of the next matrix gives at most
sqrt(d) |w g - mean(w g)| + |w b + c| for norm weights g, b and a bias c (Cauchy-Schwarz), and some input gives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from finitune.facts import Floats
from finitune.naming import Reach, tower_of
from finitune.sources.weights.safetensors import ITEM_BYTES, TORCH_NAMES, Tensor, read_rows, read_values

BEHIND = (("layer_norm2", "mlp.fc1"), ("norm2", "mlp.fc1"), ("ln_2", "mlp.c_fc"))
"""Layer norm and the matrix that reads it, as the encoders of images name them."""

BLOCK_BYTES = 2**24


def reaches(found: Sequence[Tensor]) -> Iterator[Reach]:
    """Of every MLP of an encoder of images or sound."""
    tensors = {tensor.name: tensor for tensor in found if tensor.dtype in TORCH_NAMES}
    for name, matrix in tensors.items():
        for norm, linear in BEHIND:
            stem = name.removesuffix(f".{linear}.weight")
            scale = tensors.get(f"{stem}.{norm}.weight")
            if stem == name or scale is None or not tower_of(name) or len(matrix.shape) != 2:
                continue
            shift, bias = tensors.get(f"{stem}.{norm}.bias"), tensors.get(f"{stem}.{linear}.bias")
            yield _behind_norm(matrix, read_values(scale), shift and read_values(shift), bias and read_values(bias))


def _behind_norm(matrix: Tensor, scale: Floats, shift: Floats | None, bias: Floats | None) -> Reach:
    rows, columns = matrix.shape
    step = max(1, BLOCK_BYTES // (ITEM_BYTES[matrix.dtype] * max(columns, 1)))
    row, value = 0, 0.0
    for first in range(0, rows, step):
        weights = read_rows(matrix, first, min(step, rows - first)).astype(np.float64)
        scaled = weights * scale
        offset = weights @ shift if shift is not None else np.zeros(len(weights))
        offset = offset + bias[first : first + len(weights)] if bias is not None else offset
        with np.errstate(invalid="ignore"):
            centred = scaled - scaled.mean(1, keepdims=True)
            reach = columns**0.5 * np.sqrt((centred**2).sum(1)) + np.abs(offset)
        reach = np.where(np.isfinite(reach), reach, 0.0)
        best = int(np.argmax(reach))
        if reach[best] > value:
            row, value = first + best, float(reach[best])
    return Reach(tensor=matrix.name, row=row, value=value, file=str(matrix.file))
