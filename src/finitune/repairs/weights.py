"""Remedies that rewrite weights: a repaired copy of a model directory, verified by reading it back.

What a remedy changes is its own business (`apply` of its chapter); how tensors are read and written is here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from finitune.chapter import Chapter
from finitune.finding import UnreadableInput
from finitune.recording import write_json
from finitune.repairs.outputs import MANIFEST, copy_directory, digests, work_directory
from finitune.repairs.result import Change, RepairResult
from finitune.sources.text import flag, json_object_of, section, whole
from finitune.sources.weights.checkpoint import headers, input_embedding, output_head, weight_files
from finitune.sources.weights.safetensors import ITEM_BYTES, Tensor, decode, encode, read_rows

BLOCK_ROWS = 1024

Rows = Sequence[tuple[int, npt.NDArray[np.float64]]]


def sound_tensors(source: Path) -> list[Tensor]:
    """Every tensor of a model. Raises UnreadableInput for files that are absent or damaged."""
    files, missing = weight_files(source)
    tensors, damaged = headers(files)
    if missing or damaged:
        raise UnreadableInput(f"{source}: {(missing + damaged)[0]} (expected finite weights of the right shape)")
    return tensors


def repair_rows(
    chapter: Chapter, source: Path, output: Path, tokens: Sequence[int], like: Sequence[int], seed: int
) -> RepairResult:
    """New rows of the input embedding, and of a head that is stored: all of them where the two are tied, else those
    that are untrained there too. `like` names a related token for each, or is empty.
    """
    tensors = sound_tensors(source)
    config = json_object_of(source / "config.json") if (source / "config.json").exists() else {}
    inner = section(config, "text_config")
    file = str(source / "config.json")
    vocabulary = whole({**inner, **config}, "vocab_size", file)
    embedding = input_embedding(tensors, vocabulary=vocabulary)
    if embedding is None:
        raise UnreadableInput(f"{source}: no tensor here looks like the input embedding")
    for option, ids in (("--tokens", tokens), ("--like", like)):
        beyond = [token for token in ids if not 0 <= token < embedding.shape[0]]
        if beyond:
            raise UnreadableInput(
                f"{option}: {beyond[0]} is outside of {embedding.name} (expected 0 to {embedding.shape[0] - 1})"
            )
    related = dict(zip(tokens, like, strict=True)) if like else {}
    plans = [(embedding, _new_rows(chapter, embedding, tokens, related, seed))]
    head = output_head(tensors, vocabulary=vocabulary)
    judge = chapter.function("untrained")
    if head is not None and judge is not None and head.shape[0] >= embedding.shape[0]:
        if flag({**inner, **config}, "tie_word_embeddings", file) and head.shape == embedding.shape:
            plans.append((head, plans[0][1]))
        else:
            short = judge(_blocks(head), tokens)
            plans.append((head, _new_rows(chapter, head, [t for t in tokens if short[t]], related, seed)))
    with work_directory(output) as work:
        copy_directory(source, work, weights={tensor.file for tensor in tensors})
        changes: list[Change] = []
        for tensor, rows in plans:
            changes += _rewrite(tensor, work / tensor.file.relative_to(source), rows)
        result = RepairResult(
            repair=chapter.name, output=str(output), changes=changes, seed=seed, undo=[str(output)]
        )  # fmt: skip
        seal = {"undo_by": "removing", "files": digests(work)}
        more = {"model": str(source), "tokens": list(tokens), "like": list(like)}
        write_json(work / MANIFEST, {**dataclasses.asdict(result), **seal, **more})
    return result


def _new_rows(chapter: Chapter, tensor: Tensor, tokens: Sequence[int], related: Mapping[int, int], seed: int) -> Rows:
    apply = chapter.function("apply")
    assert apply is not None
    if not tokens:
        return []
    try:
        return list(apply(blocks=_blocks(tensor), tokens=tokens, seed=seed, like=related))
    except ValueError as error:
        raise UnreadableInput(f"{tensor.file}: {tensor.name}: {error}") from None


def _rewrite(tensor: Tensor, copy: Path, rows: Rows) -> Iterator[Change]:
    """New rows written in place into `copy`, then read back and compared."""
    width = tensor.shape[1] * ITEM_BYTES[tensor.dtype]
    written = dataclasses.replace(tensor, file=copy)
    for row, values in rows:
        raw = encode(values, tensor.dtype)
        with copy.open("r+b") as file:
            file.seek(tensor.start + row * width)
            file.write(raw)
        with copy.open("rb") as file:
            file.seek(tensor.start + row * width)
            back = file.read(width)
        if back != raw or not np.isfinite(decode(np.frombuffer(back, np.uint8), tensor.dtype)).all():
            raise UnreadableInput(f"{copy}: {tensor.name}: row {row} did not read back as written")
        yield Change(
            file=copy.name,
            tensor=tensor.name,
            row=row,
            norm_before=_norm(read_rows(tensor, row, 1)[0]),
            norm_after=_norm(read_rows(written, row, 1)[0]),
        )


def _blocks(tensor: Tensor) -> Callable[[], Iterator[tuple[int, npt.NDArray[np.float32]]]]:
    rows = tensor.shape[0]
    return lambda: (
        (first, read_rows(tensor, first, min(BLOCK_ROWS, rows - first))) for first in range(0, rows, BLOCK_ROWS)
    )


def _norm(row: npt.NDArray[np.float32]) -> float:
    wide = row.astype(np.float64)
    return math.sqrt(float(wide @ wide))
