"""PyTorch .bin checkpoints: where each tensor lies in the file, read by torch's restricted loader, which runs no code.

The file is a zip archive that stores every tensor as it is, so once the places are known it is read like a safetensors
file. Needs torch 2.7, which says where they lie without reading a weight; the restricted loader opens nothing but
tensors.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import zipfile
from pathlib import Path
from typing import Any, cast

from packaging.version import Version

from finitune.finding import UnreadableInput
from finitune.sources.text import opened, short
from finitune.sources.weights.safetensors import ITEM_BYTES, TORCH_NAMES, Tensor

PATTERNS = ("pytorch_model*.bin", "adapter_model*.bin")
NEEDS = Version("2.7")
MAX_PICKLE_BYTES = 2**25
"""Names, shapes and places of tensors take some 200 bytes each."""
_SPELLED = {name: dtype for dtype, name in TORCH_NAMES.items()}


def files(path: Path) -> list[Path]:
    """The checkpoints in a directory, or the one file; not the pickles of trainers beside them."""
    if path.is_file():
        return [path] if path.suffix == ".bin" else []
    return sorted({file for pattern in PATTERNS for file in path.glob(pattern)})


def why_not_opened() -> str | None:
    """None when the restricted loader is there."""
    if importlib.util.find_spec("torch") is None:
        return "torch, whose restricted loader reads them, is not installed"
    if Version(importlib.metadata.version("torch")).release < NEEDS.release:
        return f"they are read with torch {NEEDS} or newer"
    return None


def read_header(path: Path) -> list[Tensor]:
    """The floating tensors of one file, in order of position; each storage once, whatever shares it.

    Raises UnreadableInput for a file that the restricted loader refuses, or that is no zip archive.
    """
    _refuse_compressed(path)
    torch: Any = importlib.import_module("torch")
    fake: Any = importlib.import_module("torch._subclasses.fake_tensor")
    try:
        with fake.FakeTensorMode():
            held = torch.load(path, weights_only=True)
    except Exception as error:
        reason = str(error).partition("\n")[0][:120]
        raise UnreadableInput(f"{path}: refused by torch's restricted loader ({reason})") from None
    size = path.stat().st_size
    found = [_tensor(name, value, path) for name, value in _named(held) if isinstance(value, torch.Tensor)]
    tensors = sorted((t for t in found if t is not None), key=lambda t: t.start)
    if any(t.stop > size for t in tensors):
        raise UnreadableInput(f"{path}: ends before its tensors do (expected {max(t.stop for t in tensors)} bytes)")
    return tensors


def _refuse_compressed(path: Path) -> None:
    """What torch writes is stored as it is, so nothing in the archive is larger than the file."""
    try:
        with opened(path, expected="a checkpoint of PyTorch") as file, zipfile.ZipFile(file) as archive:
            held = archive.infolist()
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
        raise UnreadableInput(f"{path}: refused by torch's restricted loader (no archive: {short(error)})") from None
    packed = next((one for one in held if one.compress_type != zipfile.ZIP_STORED), None)
    if packed is not None:
        raise UnreadableInput(f"{path}: {short(packed.filename)} is compressed (expected it as torch writes it)")
    pickled = next((one for one in held if one.filename.endswith(".pkl") and one.file_size > MAX_PICKLE_BYTES), None)
    if pickled is not None:
        raise UnreadableInput(
            f"{path}: {short(pickled.filename)}: {pickled.file_size} bytes (expected at most {MAX_PICKLE_BYTES})"
        )


def _named(held: Any) -> list[tuple[str, Any]]:
    """The state dict itself, or the one that trainers put under `state_dict` or `module`."""
    if not isinstance(held, dict):
        return []
    named = cast("dict[Any, Any]", held)
    inner = next((named[key] for key in ("state_dict", "module") if isinstance(named.get(key), dict)), named)
    return [(str(name), value) for name, value in inner.items()]


def _tensor(name: str, value: Any, path: Path) -> Tensor | None:
    dtype = _SPELLED.get(str(value.dtype).removeprefix("torch."))
    offset = getattr(value.untyped_storage(), "_checkpoint_offset", None)
    if dtype is None or offset is None or not value.numel():
        return None
    start = offset + value.storage_offset() * ITEM_BYTES[dtype]
    # Laid out in another order, its numbers are all there, but its rows are not where they seem.
    shape = tuple(value.shape) if value.is_contiguous() else (value.numel(),)
    return Tensor(
        name=name, dtype=dtype, shape=shape, file=path, start=start, stop=start + value.numel() * ITEM_BYTES[dtype]
    )
