"""A copy of a model in another dtype: tensors are streamed, headers written anew, everything read back."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from finitune.chapter import Chapter
from finitune.finding import UnreadableInput
from finitune.recording import write_json
from finitune.repairs.outputs import MANIFEST, copy_directory, digests, work_directory
from finitune.repairs.result import Change, RepairResult
from finitune.repairs.weights import sound_tensors
from finitune.sources.editing import tree_text
from finitune.sources.editing.patching import raw_text
from finitune.sources.text import json_object_of, section
from finitune.sources.weights.checkpoint import INDEX
from finitune.sources.weights.safetensors import ITEM_BYTES, TORCH_NAMES, Tensor, decode, read_header

BLOCK_ELEMENTS = 2**20
STORED = {name: code for code, name in TORCH_NAMES.items()}

Cast = Callable[..., tuple[npt.NDArray[Any], int, int]]


def cast_weights(
    chapter: Chapter, source: Path, output: Path, dtype: str | None, modules: str | Sequence[str] | None
) -> RepairResult:
    """The floating tensors whose name one of `modules` matches (a prefix or a pattern with *; all by default).

    Raises UnreadableInput, and writes nothing, when a finite number would become infinite.
    """
    targets: Mapping[str, Any] = chapter.module.TARGETS
    if dtype is None or dtype not in targets:
        known = ", ".join(targets)
        given = "is needed" if dtype is None else f"{dtype}: no dtype to cast to"
        raise UnreadableInput(f"{chapter.name}: --dtype {given} (expected one of {known})")
    patterns = modules.split(",") if isinstance(modules, str) else list(modules or ())
    tensors = sound_tensors(source)
    chosen = {t.name for t in tensors if t.dtype in TORCH_NAMES and _matches(t.name, patterns)}
    if not chosen:
        raise UnreadableInput(f"{source}: --modules {','.join(patterns)}: no tensor of floats here has such a name")
    cast: Any = chapter.function("apply")
    with work_directory(output) as work:
        files = {tensor.file for tensor in tensors}
        copy_directory(source, work, weights=files, without=files)
        changes: list[Change] = []
        for file in sorted(files):
            own = [tensor for tensor in tensors if tensor.file == file]
            changes += _cast_file(file, work / file.relative_to(source), own, chosen, dtype, cast)
        overflows = [change for change in changes if change.after is None]
        if overflows:
            named = ", ".join(str(change.tensor) for change in overflows[:3])
            raise UnreadableInput(
                f"{source}: {named}{' and more' if len(overflows) > 3 else ''}: beyond the range of {dtype} "
                "(expected another --dtype, or --modules without these)"
            )
        floats = {tensor.name for tensor in tensors if tensor.dtype in TORCH_NAMES}
        changes += _declare(work, dtype, [work / file.relative_to(source) for file in files], whole=chosen == floats)
        result = RepairResult(
            repair=chapter.name, output=str(output), seed=0, undo=[str(output)],
            changes=changes,
        )  # fmt: skip
        seal = {"undo_by": "removing", "files": digests(work)}
        write_json(work / MANIFEST, {**dataclasses.asdict(result), **seal, "model": str(source), "dtype": dtype})
    return result


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(
        name == pattern or name.startswith(f"{pattern}.") or fnmatch.fnmatchcase(name, pattern) for pattern in patterns
    )


def _cast_file(
    source: Path, target: Path, tensors: Sequence[Tensor], chosen: set[str], dtype: str, cast: Cast
) -> Iterator[Change]:
    """One file of weights. A change whose `after` is None overflowed: then the whole copy is given up."""
    header, start = _header(source, tensors, chosen, STORED[dtype])
    with target.open("wb") as out:
        out.write(header)
        for tensor in tensors:
            if tensor.name not in chosen or TORCH_NAMES[tensor.dtype] == dtype:
                _copy_tensor(tensor, out)
                continue
            totals = [0, 0, 0.0, 0.0]
            for values in _blocks(tensor):
                new, overflow, vanished = cast(values=values, dtype=dtype)
                out.write(new.tobytes())
                wide = new.astype(np.float64)
                old = values.astype(np.float64)
                with np.errstate(over="ignore", invalid="ignore"):
                    totals = [a + b for a, b in zip(totals, (overflow, vanished, old @ old, wide @ wide), strict=True)]
            yield Change(
                file=target.name, tensor=tensor.name, before=TORCH_NAMES[tensor.dtype],
                after=None if totals[0] else dtype, norm_before=math.sqrt(totals[2]), norm_after=math.sqrt(totals[3]),
                vanished=int(totals[1]),
            )  # fmt: skip
    _read_back(target, tensors, chosen, dtype, start, cast)


def _header(source: Path, tensors: Sequence[Tensor], chosen: set[str], code: str) -> tuple[bytes, int]:
    with source.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        held: dict[str, Any] = json.loads(file.read(length))
    entries: dict[str, Any] = {"__metadata__": held["__metadata__"]} if "__metadata__" in held else {}
    at = 0
    for tensor in tensors:
        stored = code if tensor.name in chosen else tensor.dtype
        size = tensor.elements * ITEM_BYTES[stored] if tensor.name in chosen else tensor.stop - tensor.start
        entries[tensor.name] = {"dtype": stored, "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw, 8 + len(raw)


def _copy_tensor(tensor: Tensor, out: Any) -> None:
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        left = tensor.stop - tensor.start
        while left:
            block = file.read(min(left, 2**22))
            if not block:
                raise UnreadableInput(f"{tensor.file}: {tensor.name}: the file ended while it was read")
            out.write(block)
            left -= len(block)


def _blocks(tensor: Tensor) -> Iterator[npt.NDArray[Any]]:
    size = ITEM_BYTES[tensor.dtype]
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        for first in range(0, tensor.elements, BLOCK_ELEMENTS):
            count = min(BLOCK_ELEMENTS, tensor.elements - first)
            raw = file.read(count * size)
            if len(raw) < count * size:
                raise UnreadableInput(f"{tensor.file}: {tensor.name}: the file ended while it was read")
            yield decode(np.frombuffer(raw, np.uint8), tensor.dtype)


def _read_back(target: Path, tensors: Sequence[Tensor], chosen: set[str], dtype: str, start: int, cast: Cast) -> None:
    """Every tensor of the copy against its original."""
    found = {tensor.name: tensor for tensor in read_header(target)}
    for tensor in tensors:
        new = found.get(tensor.name)
        as_it_was = tensor.name not in chosen or TORCH_NAMES[tensor.dtype] == dtype
        same = new is not None and new.shape == tensor.shape and new.start >= start
        if same and new is not None:
            if as_it_was:
                same = new.dtype == tensor.dtype and _raw_equal(tensor, new)
            else:
                pairs = zip(_blocks(tensor), _blocks(new), strict=True)
                same = new.dtype == STORED[dtype] and all(
                    np.array_equal(cast(values=old, dtype=dtype)[0].astype(values.dtype), values, equal_nan=True)
                    for old, values in pairs
                )
        if not same:
            raise UnreadableInput(f"{target}: {tensor.name}: did not read back as written")


def _raw_equal(one: Tensor, other: Tensor) -> bool:
    with one.file.open("rb") as first, other.file.open("rb") as second:
        first.seek(one.start)
        second.seek(other.start)
        left = one.stop - one.start
        while left > 0:
            count = min(left, 2**22)
            if first.read(count) != second.read(count):
                return False
            left -= count
    return other.stop - other.start == one.stop - one.start


def _declare(work: Path, dtype: str, files: Sequence[Path], *, whole: bool) -> Iterator[Change]:
    """What the copy says of itself: the dtype in config.json, the size in the index of the shards."""
    index, config = work / INDEX, work / "config.json"
    if index.exists():
        size = sum(t.stop - t.start for file in files for t in read_header(file))
        yield from _set(index, ("metadata", "total_size"), size)
    if whole and config.exists():
        held = json_object_of(config)
        for key in ("dtype", "torch_dtype"):
            if isinstance(held.get(key), str):
                yield from _set(config, (key,), dtype)


def _set(file: Path, path: tuple[str, ...], value: Any) -> Iterator[Change]:
    held: Mapping[str, Any] = json_object_of(file)
    for name in path[:-1]:
        held = section(held, name)
    if path[-1] in held:
        old = held[path[-1]]
        file.write_text(tree_text.edited(raw_text(file), {path: value}, "json"), encoding="utf-8", newline="")
        yield Change(file=file.name, key=".".join(path), before=old, after=value)
