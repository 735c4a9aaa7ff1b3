"""Weights -> how far single operators reach: raw query-key products from biases, projections behind a layer norm.

Both are exact for the weights as they are. With rotary positions the product of the biases is that of a query and a
key at the same position. A layer norm puts out a vector of norm sqrt(d) at most and of mean zero, so a row w of the
next matrix gives at most sqrt(d) |w g - mean(w g)| + |w b + c| for norm weights g, b and a bias c (Cauchy-Schwarz).
"""

# pyright: reportUnknownMemberType=false
# (numpy's stubs leave ndarray.reshape() partly unknown)

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from finitune.facts import Floats
from finitune.reach import Reach, tower_of
from finitune.sources.safetensors import ITEM_BYTES, TORCH_NAMES, Tensor, read_rows, read_values
from finitune.sources.text import whole

BEHIND = (("layer_norm2", "mlp.fc1"), ("norm2", "mlp.fc1"), ("ln_2", "mlp.c_fc"))
"""Layer norm and the matrix that reads it, as the encoders of images name them."""

BLOCK_BYTES = 2**24


def reaches(tensors: Sequence[Tensor], config: Mapping[str, Any], file: str) -> list[Reach]:
    """Of every attention of the language model with biases, and of every MLP of an encoder of images or sound."""
    by_name = {tensor.name: tensor for tensor in tensors if tensor.dtype in TORCH_NAMES}
    return [*_scores(by_name, config, file), *_behind_norms(by_name)]


def _scores(tensors: Mapping[str, Tensor], config: Mapping[str, Any], file: str) -> Iterator[Reach]:
    heads, hidden = whole(config, "num_attention_heads", file), whole(config, "hidden_size", file)
    width = whole(config, "head_dim", file) or (hidden // heads if heads and hidden else 0)
    for name, tensor in tensors.items():
        key = tensors.get(name.replace("q_proj", "k_proj"))
        if not name.endswith("q_proj.bias") or key is None or tower_of(name) or not width:
            continue
        queries, keys = read_values(tensor), read_values(key)
        if not len(keys) or len(queries) % len(keys) or len(keys) % width:
            continue
        grouped = np.repeat(keys.reshape(-1, width), len(queries) // len(keys), axis=0)
        products = np.abs((queries.reshape(-1, width) * grouped).sum(1))
        head = int(np.argmax(products))
        if np.isfinite(products).all():
            yield Reach(
                what="query-key", tensor=name, row=head, value=float(products[head]), file=str(tensor.file)
            )  # fmt: skip


def _behind_norms(tensors: Mapping[str, Tensor]) -> Iterator[Reach]:
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
    return Reach(what="behind-norm", tensor=matrix.name, row=row, value=value, file=str(matrix.file))
