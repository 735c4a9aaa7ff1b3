"""Write safetensors one tensor at a time, so that no more than one of them is in the memory of the host.

The format: eight bytes with the length of a JSON header, the header, the bytes of every tensor in order.
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from finitune.monitor.probes.ranks import whole

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
}  # fmt: skip


def write_tensors(path: Path, tensors: Iterable[tuple[str, Tensor]], *, write: bool = True) -> None:
    """Every tensor under its name. Sharded ones are gathered one by one, which all ranks take part in; only the rank
    with `write` keeps their bytes.

    Raises OSError for a disk that is full, KeyError for a dtype that the format does not have.
    """
    known = [(name, tensor) for name, tensor in tensors if tensor.layout == torch.strided]
    header: dict[str, Any] = {}
    start = 0
    for name, tensor in known:
        shape = list(getattr(tensor, "ds_shape", tensor.shape))
        size = torch.Size(shape).numel() * tensor.dtype.itemsize
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": shape, "data_offsets": [start, start + size]}
        start += size
    file = path.open("wb") if write else None
    try:
        if file is not None:
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            file.write(struct.pack("<Q", len(text)) + text)
        for _, tensor in known:
            with torch.no_grad():
                here = whole(tensor)
            if file is not None:
                kept = here.detach().cpu().contiguous()  # may lie in a larger buffer; numpy may not be installed
                file.write((ctypes.c_char * kept.nbytes).from_address(kept.data_ptr()) if kept.numel() else b"")
    finally:
        if file is not None:
            file.close()
