"""One pass over the bits of weights: how many are non-finite, the peak, the rms, how many a cast would lose.

The magnitudes of IEEE numbers order like their bits, so integer maxima tell the peak and whether anything is
non-finite; only a block that shows something is looked at element by element. Counts, peaks and places are exact; the
rms of a large tensor, and how much of it a cast turns to zero, are estimated from a sample. Blocks stay in the cache,
files are read by several threads (numpy and the kernel both release the interpreter lock), and memory does not grow
with the model.
"""

# pyright: reportUnknownMemberType=false, reportArgumentType=false
# (numpy's stubs leave ndarray.view() partly unknown, and arrays are buffers only from Python 3.12 on)

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from finitune.facts import TensorScan
from finitune.finding import UnreadableInput
from finitune.sources.result import Track, untracked
from finitune.sources.weights.safetensors import ITEM_BYTES, TORCH_NAMES, Tensor, decode, float8_values

BLOCK_BYTES = 2**21
"""Fits in the caches, and is large enough that the interpreter has little to do (measured: 2**18 is half as fast)."""

UNIT_BYTES = 8 * BLOCK_BYTES
"""What one thread takes at a time."""

MAX_THREADS = 4
"""More only wait for each other at the interpreter lock."""

OVERFLOWS_FROM = {"float16": 65520.0, "bfloat16": (2 - 2**-8) * 2.0**127}
"""Smallest magnitude that rounds to infinity: the largest finite value plus half a unit in its last place."""

VANISHES_UP_TO = {"float16": 2.0**-25}
"""Largest magnitude that rounds to zero: half of the smallest subnormal, whose tie goes to even, which is zero."""

SAMPLE_FROM = 2**16
"""Elements of a block from which its squares are estimated."""

SAMPLE_STRIDE = 251
"""Every 251st 32-bit word is in the sample: a prime, so that a sample meets every column of a matrix. At 10^7 elements
the rms is then off by about 0.3 % (one standard deviation, for weights that are about normal)."""

PLAIN = {"BF16": "<u2", "F16": "<u2", "F32": "<u4"}
"""The dtypes whose magnitudes are compared as bits."""

# Squares are summed in float32 only where they can neither overflow nor vanish there.
_SAFE_SQUARES = (1e-12, 1e15)

_Bits = npt.NDArray[np.uint32]
_Block = tuple[int, int, _Bits]
"""The place of its first element in the tensor, how many it holds, and their bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Statistics of one stretch of a tensor; `first` is the flat index of the first non-finite element."""

    nonfinite: int
    peak: float
    squares: float
    overflow: int
    underflow: float
    first: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """Of the dtype of compute: magnitudes from `overflow` on become infinite, those up to `vanishes` zero."""

    overflow: float
    vanishes: float


def scan(tensors: Sequence[Tensor], *, compute: str | None, track: Track = untracked) -> list[TensorScan]:
    """Statistics of every floating tensor, in the order given; others are left out.

    `compute` is the dtype by whose range `overflow` and `underflow` are judged; None judges nothing.
    """
    floating = [tensor for tensor in tensors if tensor.dtype in TORCH_NAMES]
    limits = _Range(
        overflow=OVERFLOWS_FROM.get(compute or "", math.inf), vanishes=VANISHES_UP_TO.get(compute or "", 0.0)
    )
    units = [
        (index, first, min(first + UNIT_BYTES // ITEM_BYTES[tensor.dtype], tensor.elements))
        for index, tensor in enumerate(floating)
        for first in range(0, tensor.elements, UNIT_BYTES // ITEM_BYTES[tensor.dtype])
    ]
    buffers = threading.local()

    def work(unit: tuple[int, int, int]) -> list[Part]:
        if not hasattr(buffers, "pair"):
            buffers.pair = (np.empty(BLOCK_BYTES // 4, np.uint32), np.empty(BLOCK_BYTES // 4, np.uint32))
        index, first, stop = unit
        return _scan_unit(floating[index], first, stop, limits, *buffers.pair)

    found: list[list[Part]] = [[] for _ in floating]
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        for (index, _, _), parts in track(zip(units, pool.map(work, units), strict=True), "weights", len(units)):
            found[index] += parts
    return [_whole(tensor, parts) for tensor, parts in zip(floating, found, strict=True)]


def _scan_unit(tensor: Tensor, first: int, stop: int, limits: _Range, block: _Bits, scratch: _Bits) -> list[Part]:
    return _scan_blocks(_blocks(tensor, first, stop, block), tensor.dtype, limits, scratch)


def _blocks(tensor: Tensor, first: int, stop: int, block: _Bits) -> Iterator[_Block]:
    """The elements from `first` to `stop`, a block at a time, each in the place of the one before."""
    size = ITEM_BYTES[tensor.dtype]
    step = BLOCK_BYTES // size
    with tensor.file.open("rb", buffering=0) as file:
        file.seek(tensor.start + first * size)
        for begin in range(first, stop, step):
            count = min(step, stop - begin)
            fill(file, memoryview(block.view(np.uint8))[: count * size], tensor)
            yield begin, count, block


def fill(file: Any, view: memoryview, tensor: Tensor) -> None:
    """Read until `view` is full. Raises UnreadableInput where the file ends before."""
    while view:
        got = file.readinto(view)
        if not got:
            raise UnreadableInput(f"{tensor.file}: {tensor.name}: the file ended while it was read")
        view = view[got:]


def _scan_blocks(blocks: Iterable[_Block], dtype: str, limits: _Range, scratch: _Bits) -> list[Part]:
    """Overwrites the blocks; `scratch` is as large as one. What is estimated is computed once, from all samples."""
    size = ITEM_BYTES[dtype]
    parts: list[Part] = []
    samples: list[_Bits] = []
    top, sampled = 0.0, 0
    for begin, count, block in blocks:
        raw = block.view(np.uint8)[: count * size]
        peak = _plain_peak(raw, dtype, limits)
        if peak is None:
            parts.append(_scan_closely(raw, dtype, begin, limits))
        elif count < SAMPLE_FROM:
            parts.append(_estimated(block, count, count, dtype, peak, limits, scratch))
        elif peak:
            samples.append(np.array(block[: len(raw) // 4 : SAMPLE_STRIDE]))
            top, sampled = max(top, peak), sampled + count
    if samples:
        sample = np.concatenate(samples)
        parts.append(_estimated(sample, sample.nbytes // size, sampled, dtype, top, limits, scratch))
    return parts


def _plain_peak(raw: npt.NDArray[np.uint8], dtype: str, limits: _Range) -> float | None:
    """The peak; None where each element has to be looked at."""
    if dtype not in PLAIN:
        return None
    peak = _peak(raw.view(PLAIN[dtype]), dtype)
    low, high = _SAFE_SQUARES
    return peak if (peak == 0 or low < peak < high) and peak < limits.overflow else None


def _scan_closely(raw: npt.NDArray[np.uint8], dtype: str, begin: int, limits: _Range) -> Part:
    if dtype in ("F8_E4M3", "F8_E5M2"):
        return _scan_float8(raw, dtype, begin, limits)
    return _scan_elements(decode(raw, dtype), begin, limits)


def _estimated(sample: _Bits, taken: int, count: int, dtype: str, peak: float, limits: _Range, scratch: _Bits) -> Part:
    """Of `count` elements with this peak, from the `taken` ones at the front of `sample`, which is overwritten."""
    if not peak:
        return Part(nonfinite=0, peak=0.0, squares=0.0, overflow=0, underflow=0, first=None)
    vanishing = _vanishing(sample.view(PLAIN[dtype])[:taken], dtype, limits.vanishes)  # before the squares
    squares = _squares(sample, taken, dtype, scratch)
    share = count / taken
    return Part(nonfinite=0, peak=peak, squares=squares * share, overflow=0, underflow=vanishing * share, first=None)


def _vanishing(bits: npt.NDArray[Any], dtype: str, limit: float) -> int:
    """How many non-zero magnitudes are at most `limit`; the order of the bits is that of the magnitudes."""
    if dtype == "F16" or not limit:
        return 0
    top = np.array([limit], np.float32).view(np.uint32) >> (16 if dtype == "BF16" else 0)
    magnitudes = bits & bits.dtype.type((1 << (8 * bits.itemsize - 1)) - 1)
    magnitudes -= 1  # zero wraps round and becomes the largest
    return int(np.count_nonzero(magnitudes < top.astype(bits.dtype)))


def _peak(bits: npt.NDArray[Any], dtype: str) -> float:
    """The largest magnitude; not finite where any element is not.

    Read as signed, the positive number with the most magnitude is the maximum; read as unsigned, the negative one.
    """
    sign = 1 << (8 * bits.itemsize - 1)
    largest, positive = int(bits.max()), int(bits.view(f"<i{bits.itemsize}").max())
    top = max(largest - sign if largest >= sign else largest, positive)
    return float(decode(np.array([top], bits.dtype).view(np.uint8), dtype)[0])


def _squares(block: _Bits, count: int, dtype: str, scratch: _Bits) -> float:
    words = (count * ITEM_BYTES[dtype] + 3) // 4
    if count * ITEM_BYTES[dtype] % 4:  # the upper half of the last pair is left over from an earlier block
        block[words - 1] &= 0xFFFF
    return float(row_squares(block[None, :words], dtype, scratch[None, :words])[0])


def row_squares(words: _Bits, dtype: str, scratch: _Bits) -> npt.NDArray[np.float32]:
    """Sum of squares of each row of BF16, F16 or F32 numbers, packed into 32-bit words [rows, words].

    `scratch` is as large. Infinities and NaN of F16 are taken for numbers, so they have to be looked for elsewhere.
    """
    values = scratch.view(np.float32)
    if dtype == "F32":
        return _dots(words.view(np.float32))
    if dtype == "BF16":  # a bfloat16 is the upper half of a float32
        np.left_shift(words, 16, out=scratch)
        low = _dots(values)
        np.bitwise_and(words, 0xFFFF0000, out=scratch)
        return low + _dots(values)
    total = np.zeros(len(words), np.float32)
    for shift, half in ((13, np.left_shift), (-3, np.right_shift)):
        # float16 bits, moved to where float32 keeps them, are the value times 2**-112, subnormals included
        half(np.bitwise_and(words, 0x7FFF if shift > 0 else 0x7FFF0000, out=scratch), abs(shift), out=scratch)
        np.multiply(values, np.float32(2.0**112), out=values)
        total += _dots(values)
    return total


def _dots(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    with np.errstate(over="ignore", invalid="ignore"):  # the caller looks again where a sum is not a number
        return np.matmul(values[:, None, :], values[:, :, None])[:, 0, 0]


def _scan_elements(values: npt.NDArray[Any], begin: int, limits: _Range) -> Part:
    wide = np.abs(values.astype(np.float64))
    finite = np.isfinite(wide)
    valid = wide if finite.all() else wide[finite]
    peak = float(valid.max(initial=0.0))
    # scaled by the peak, so that the squares of float64 stay in range too
    scale = peak or 1.0
    return Part(
        nonfinite=len(wide) - len(valid),
        peak=peak,
        squares=float(np.dot(valid / scale, valid / scale)) * scale * scale if scale < 1e150 else math.inf,
        overflow=int(np.count_nonzero(valid >= limits.overflow)),
        underflow=int(np.count_nonzero((valid > 0) & (valid <= limits.vanishes))) if limits.vanishes else 0,
        first=None if len(valid) == len(wide) else begin + int(np.argmin(finite)),
    )


def _scan_float8(raw: npt.NDArray[np.uint8], dtype: str, begin: int, limits: _Range) -> Part:
    counts = np.bincount(raw, minlength=256)
    values = np.abs(float8_values(dtype).astype(np.float64))
    if counts[~np.isfinite(values)].any():
        return _scan_elements(values[raw], begin, limits)
    present = values[counts > 0]
    return Part(
        nonfinite=0,
        peak=float(present.max(initial=0.0)),
        squares=float(np.sum(np.where(counts > 0, values * values, 0.0) * counts)),
        overflow=0,
        underflow=0,
        first=None,
    )


def _whole(tensor: Tensor, parts: Sequence[Part]) -> TensorScan:
    nonfinite = sum(part.nonfinite for part in parts)
    finite = tensor.elements - nonfinite
    first = next((part.first for part in parts if part.first is not None), None)
    return TensorScan(
        name=tensor.name,
        dtype=TORCH_NAMES[tensor.dtype],
        shape=tensor.shape,
        nonfinite=nonfinite,
        peak=max((part.peak for part in parts), default=0.0),
        rms=math.sqrt(math.fsum(part.squares for part in parts) / finite) if finite else 0.0,
        file=str(tensor.file),
        overflow=sum(part.overflow for part in parts),
        underflow=round(math.fsum(part.underflow for part in parts)),
        first_nonfinite=None if first is None else [int(i) for i in np.unravel_index(first, tensor.shape or (1,))],
    )
