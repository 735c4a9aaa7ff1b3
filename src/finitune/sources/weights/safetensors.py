"""The safetensors format: its header, checked before anything is believed, and the bytes behind it.

Layout: 8 bytes little-endian header length, JSON header, data. Reference: huggingface/safetensors README.
"""

# pyright: reportUnknownMemberType=false
# (numpy's stubs leave ndarray.view() and reshape() partly unknown)

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from finitune.finding import UnreadableInput
from finitune.json_memory import json_memory
from finitune.sources.text import kind_of, opened, reason, short, why_not

MAX_DIMENSIONS = 64
"""That numpy has; torch models have five."""
MAX_TENSORS = 200_000
"""In one file; the largest published models have a tenth in all of theirs."""
MAX_HEADER_BYTES = 100_000_000
"""The bound of the reference implementation."""
MAX_HEADER_MEMORY = 2**28
"""Bytes of a header as objects: an entry takes about 1,200."""

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "C64": 8,
}  # fmt: skip

TORCH_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
}  # fmt: skip
"""The floating dtypes, as torch spells them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One entry of a header. `start` and `stop` are byte offsets in the file."""

    name: str
    dtype: str
    """As the header spells it, for example "BF16"."""
    shape: tuple[int, ...]
    file: Path
    start: int
    stop: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def read_header(path: Path) -> list[Tensor]:
    """The tensors of one file, in order of position.

    Raises UnreadableInput when the header is not one, or promises bytes that the file does not have.
    """
    try:
        with opened(path, expected="a safetensors file") as file:
            size = path.stat().st_size
            length = _header_length(path, file.read(8), size)
            raw = file.read(length)
    except OSError as error:
        raise UnreadableInput(f"{path}: {reason(error)} (expected a safetensors file)") from None
    if len(raw) < length:
        raise UnreadableInput(f"{path}: header: cut short at {len(raw)} of {length} bytes")
    try:
        if json_memory(raw) > MAX_HEADER_MEMORY:
            raise UnreadableInput(f"{path}: header: more values than fit into the memory (expected a few per tensor)")
        header = json.loads(raw.decode("utf-8"))
    except UnreadableInput:
        raise
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{path}: header: not JSON ({why_not(error)})") from None
    if not isinstance(header, dict):
        raise UnreadableInput(f"{path}: header: expected a JSON object, found {kind_of(header)}")
    entries = cast(dict[str, Any], header)
    if len(entries) > MAX_TENSORS:
        raise UnreadableInput(f"{path}: header: {len(entries)} tensors (expected at most {MAX_TENSORS})")
    tensors = [
        _entry(path, name, entry, base=8 + length, available=size - 8 - length)
        for name, entry in entries.items()
        if name != "__metadata__"
    ]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    _refuse_bad_layout(path, tensors, base=8 + length, size=size)
    return tensors


def read_rows(tensor: Tensor, first: int, count: int) -> npt.NDArray[np.float32]:
    """Rows [first, first + count) of a matrix of floats, as float32 [count, columns]."""
    columns = tensor.shape[1]
    width = columns * ITEM_BYTES[tensor.dtype]
    with tensor.file.open("rb") as file:
        file.seek(tensor.start + first * width)
        raw = file.read(count * width)
    if len(raw) < count * width:
        raise UnreadableInput(f"{tensor.file}: {tensor.name}: the file ended while it was read")
    return decode(np.frombuffer(raw, dtype=np.uint8), tensor.dtype).astype(np.float32).reshape(count, columns)


def read_values(tensor: Tensor) -> npt.NDArray[np.float64]:
    """All of a small tensor of floats, as one row of float64."""
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        raw = file.read(tensor.stop - tensor.start)
    if len(raw) < tensor.stop - tensor.start:
        raise UnreadableInput(f"{tensor.file}: {tensor.name}: the file ended while it was read")
    return decode(np.frombuffer(raw, dtype=np.uint8), tensor.dtype).astype(np.float64)


def decode(raw: npt.NDArray[np.uint8], dtype: str) -> npt.NDArray[Any]:
    """Bytes as an array of float32 (float64 for F64)."""
    if dtype == "BF16":
        return np.left_shift(raw.view(np.uint16), 16, dtype=np.uint32).view(np.float32)
    if dtype == "F16":
        return raw.view(np.float16).astype(np.float32)
    if dtype in ("F8_E4M3", "F8_E5M2"):
        return float8_values(dtype)[raw]
    return raw.view({"F32": np.float32, "F64": np.float64}[dtype])


def encode(values: npt.NDArray[np.float64], dtype: str) -> bytes:
    """Numbers as the bytes of `dtype`, rounded to nearest even. Finite values within range only."""
    if dtype == "BF16":
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    kinds = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
    if dtype not in kinds:
        raise UnreadableInput(f"cannot write rows in {dtype} (expected BF16, F16, F32 or F64)")
    return values.astype(kinds[dtype]).tobytes()


def float8_values(dtype: str) -> npt.NDArray[np.float32]:
    """The 256 values of an 8-bit float. e4m3fn has no infinity; all bits set is NaN. OCP OFP8, revision 1.0."""
    mantissa_bits, bias = (3, 7) if dtype == "F8_E4M3" else (2, 15)
    codes = np.arange(256)
    exponent = (codes & 0x7F) >> mantissa_bits
    fraction = (codes & (2**mantissa_bits - 1)) / 2**mantissa_bits
    size = np.where(exponent > 0, (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias))
    if dtype == "F8_E4M3":
        size[(codes & 0x7F) == 0x7F] = np.nan
    else:
        size[(codes & 0x7F) == 0x7C] = np.inf
        size[(codes & 0x7F) > 0x7C] = np.nan
    return np.where(codes >= 128, -size, size).astype(np.float32)


def _header_length(path: Path, raw: bytes, size: int) -> int:
    if len(raw) < 8:
        raise UnreadableInput(f"{path}: {size} bytes (expected a safetensors file, which has at least 8)")
    length = int.from_bytes(raw, "little")
    if length > MAX_HEADER_BYTES:
        raise UnreadableInput(f"{path}: header: length {length} (expected at most {MAX_HEADER_BYTES} bytes)")
    if 8 + length > size:
        raise UnreadableInput(f"{path}: header: length {length}, but the file has only {size} bytes")
    return length


def _entry(path: Path, name: str, entry: Any, *, base: int, available: int) -> Tensor:
    where = f"{path}: header: {short(name)}"
    if not isinstance(entry, Mapping):
        raise UnreadableInput(f"{where}: expected dtype, shape and data_offsets, found {kind_of(entry)}")
    fields = cast(Mapping[str, Any], entry)
    dtype, shape, offsets = fields.get("dtype"), _whole_numbers(fields, "shape"), _whole_numbers(fields, "data_offsets")
    if not isinstance(dtype, str):
        raise UnreadableInput(f"{where}: dtype: expected text such as BF16, found {kind_of(dtype)}")
    if shape is not None and (len(shape) > MAX_DIMENSIONS or max(shape, default=0) >= 2**63):
        raise UnreadableInput(f"{where}: shape: {len(shape)} dimensions (at most {MAX_DIMENSIONS} below 2^63 expected)")
    if shape is None:
        raise UnreadableInput(f"{where}: shape: expected a list of whole numbers from 0")
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise UnreadableInput(f"{where}: data_offsets: expected [start, stop] with 0 <= start <= stop")
    start, stop = offsets
    if stop > available:
        raise UnreadableInput(f"{where}: ends at data byte {stop}, but the file has only {available}")
    wanted = math.prod(shape) * ITEM_BYTES[dtype] if dtype in ITEM_BYTES else stop - start
    if stop - start != wanted:
        raise UnreadableInput(
            f"{where}: {short(dtype)} {short(shape)} takes {wanted} bytes, data_offsets give {stop - start}"
        )
    return Tensor(name=name, dtype=dtype, shape=tuple(shape), file=path, start=base + start, stop=base + stop)


def _whole_numbers(fields: Mapping[str, Any], key: str) -> list[int] | None:
    value = fields.get(key)
    if not isinstance(value, list) or not all(type(v) is int and v >= 0 for v in cast(list[Any], value)):
        return None
    return cast(list[int], value)


def _refuse_bad_layout(path: Path, tensors: list[Tensor], *, base: int, size: int) -> None:
    """The format allows neither overlap nor gaps: every data byte belongs to exactly one tensor."""
    end = base
    for tensor in tensors:
        if tensor.start != end:
            fault = "overlaps the tensor before it" if tensor.start < end else "leaves a gap before it"
            raise UnreadableInput(f"{path}: header: {short(tensor.name)}: {fault} (at data byte {tensor.start - base})")
        end = tensor.stop
    if end != size:
        raise UnreadableInput(f"{path}: {size - end} bytes after the last tensor (expected none)")
