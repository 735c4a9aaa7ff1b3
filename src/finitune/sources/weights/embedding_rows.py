"""Rms of every row of the input embedding, and how much of each row a cast loses: one pass over the bits.

Sums in float32 serve all rows but a few; those whose squares leave its range, that are not finite, or that lose
something in the cast are looked at again in float64.
"""

# pyright: reportUnknownMemberType=false, reportArgumentType=false
# (numpy's stubs leave ndarray.view() partly unknown, and arrays are buffers only from Python 3.12 on)

from __future__ import annotations

import math
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from finitune.facts import EmbeddingRows, Floats, Ints
from finitune.sources.result import Track, untracked
from finitune.sources.weights.safetensors import ITEM_BYTES, TORCH_NAMES, Tensor, decode, read_rows
from finitune.sources.weights.scan import BLOCK_BYTES, MAX_THREADS, fill, row_squares

VANISHES_BELOW = 2.0**-25
"""A magnitude up to here rounds to zero in float16 (half its smallest subnormal; the tie goes to even, zero)."""

VANISHING_BITS = {"BF16": ("<u2", 0x3300), "F32": ("<u4", 0x33000000)}
"""The integers that VANISHES_BELOW is in these dtypes; magnitudes order like their bits."""

FLOAT16_INFINITY = 0x7C00

SAFE_SUMS = (1e-28, 1e30)
"""Sums of squares within float32 that neither vanished nor overflowed on the way."""

MAX_ROWS, MAX_WIDTH = 2**22, 2**22
"""Rows, and bytes of one: four times the largest vocabulary, sixteen times the widest model. Memory grows with both."""

MOST_COMPARED = 10_000
"""Rows whose numbers are compared; a vocabulary of copies need not be read twice to be called one."""

_Bits = npt.NDArray[np.uint32]


def too_large(tensor: Tensor) -> bool:
    """A matrix whose rows are too many or too wide for the memory."""
    return tensor.shape[0] > MAX_ROWS or tensor.shape[1] * ITEM_BYTES[tensor.dtype] > MAX_WIDTH


def embedding_rows(tensor: Tensor, *, compute: str | None, track: Track = untracked) -> EmbeddingRows:
    """Rms of every row. A row with a non-finite element has a NaN rms and does not count in the median."""
    rows, columns = tensor.shape
    width = columns * ITEM_BYTES[tensor.dtype]
    step = max(1, BLOCK_BYTES // width)
    casts = compute == "float16" and TORCH_NAMES[tensor.dtype] != "float16"
    buffers = threading.local()

    def block(first: int) -> tuple[Floats, Floats]:
        if not hasattr(buffers, "all"):
            buffers.all = tuple(np.empty((step * width + 3) // 4, np.uint32) for _ in range(3))
        words, scratch, magnitudes = buffers.all
        count = min(step, rows - first)
        with tensor.file.open("rb", buffering=0) as file:
            file.seek(tensor.start + first * width)
            fill(file, memoryview(words.view(np.uint8))[: count * width], tensor)
        return _block(words, scratch, magnitudes, (count, columns), tensor.dtype, casts=casts)

    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        firsts = range(0, rows, step)
        blocks = list(track(pool.map(block, firsts), "embedding rows", len(firsts)))
    rms = np.concatenate([b[0] for b in blocks])
    return EmbeddingRows(
        tensor=tensor.name,
        ids=np.arange(rows, dtype=np.int64),
        rms=rms,
        median_rms=float(np.nanmedian(rms)) if np.isfinite(rms).any() else math.nan,
        lost_in_cast=np.concatenate([b[1] for b in blocks]),
        dtype=TORCH_NAMES[tensor.dtype],
        file=str(tensor.file),
        twins=_twins(tensor, rms),
    )


def _twins(tensor: Tensor, rms: Floats) -> Ints:
    """For each row how many others hold the same numbers; only rows of exactly the same rms are compared."""
    _, group, counts = np.unique(rms, return_inverse=True, return_counts=True)
    twins = np.where(rms == 0, counts[group] - 1, 0)
    alike = np.flatnonzero((counts[group] > 1) & (rms > 0))
    held = {int(row): blake2b(read_rows(tensor, int(row), 1).tobytes()).digest() for row in alike[:MOST_COMPARED]}
    copies = Counter(held.values())
    for row, values in held.items():
        twins[row] = copies[values] - 1
    return twins.astype(np.int64)


def _block(
    words: _Bits, scratch: _Bits, magnitudes: _Bits, shape: tuple[int, int], dtype: str, *, casts: bool
) -> tuple[Floats, Floats]:
    """Rms and lost fraction of each row; `words` holds them, the other two are as large."""
    rows, columns = shape
    width = columns * ITEM_BYTES[dtype]
    raw = words.view(np.uint8)[: rows * width].reshape(rows, width)
    lost = np.zeros(rows)
    if dtype in ("F64", "F8_E4M3", "F8_E5M2") or width % 4:
        return _exactly(raw, columns, dtype, lost, casts=casts)
    packed, free = (buffer[: rows * width // 4].reshape(rows, -1) for buffer in (words, scratch))
    sums = row_squares(packed, dtype, free).astype(np.float64)
    doubtful = ~((sums > SAFE_SUMS[0]) & (sums < SAFE_SUMS[1]))
    if dtype == "F16" or casts:
        kind, vanishing = VANISHING_BITS.get(dtype, ("<u2", 0))
        bits = raw.view(kind)
        size = magnitudes.view(kind)[: bits.size].reshape(bits.shape)
        np.bitwise_and(bits, np.iinfo(kind).max >> 1, out=size)
        if casts:  # minus one, so that zero, which loses nothing, becomes the largest
            doubtful |= np.subtract(size, 1, out=size).min(axis=1) < vanishing
        else:
            doubtful |= size.max(axis=1) >= FLOAT16_INFINITY
    rms = np.sqrt(sums / columns)
    if doubtful.any():
        rms[doubtful], lost[doubtful] = _exactly(raw[doubtful], columns, dtype, lost[doubtful], casts=casts)
    return rms, lost


def _exactly(
    raw: npt.NDArray[np.uint8], columns: int, dtype: str, lost: Floats, *, casts: bool
) -> tuple[Floats, Floats]:
    wide = decode(raw.reshape(-1), dtype).astype(np.float64).reshape(-1, columns)
    with np.errstate(invalid="ignore", over="ignore"):
        rms = np.sqrt(np.einsum("ij,ij->i", wide, wide) / columns)
    return np.where(np.isfinite(rms), rms, np.nan), _lost(wide) if casts else lost


def _lost(values: Floats) -> Floats:
    size = np.abs(values)
    present = np.count_nonzero(size > 0, axis=1)
    gone = np.count_nonzero((size > 0) & (size <= VANISHES_BELOW), axis=1)
    return gone / np.maximum(present, 1)
