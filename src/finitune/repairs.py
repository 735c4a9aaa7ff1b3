"""Cures that rewrite files: a repaired copy of a model directory or of a data file, verified by reading it back.

The copy is made under a temporary name beside the output and renamed when it is sound, so the output is whole or
absent. What a remedy changes is its own business (`apply` of its chapter); how files are copied and written is here.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import json
import math
import os
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from finitune.cause import causes
from finitune.chapter import Chapter, ask
from finitune.finding import Finding, UnreadableInput
from finitune.recording import write_json
from finitune.remedy import remedies
from finitune.sources import Config, gather
from finitune.sources.checkpoint import headers, input_embedding, output_head, weight_files
from finitune.sources.dataset_rows import is_lines_or_list
from finitune.sources.dataset_rows import rows as data_rows
from finitune.sources.safetensors import ITEM_BYTES, Tensor, decode, encode, read_rows
from finitune.sources.text import json_object_of, reason, whole

MANIFEST = "finitune-repair.json"

BLOCK_ROWS = 1024

Ids = Sequence[int] | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row that was written, or dropped. Norms are L2 norms, as stored."""

    file: str
    row: int
    tensor: str | None = None
    norm_before: float | None = None
    norm_after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult:
    """What `finitune repair` did."""

    repair: str
    output: str
    changes: Sequence[Change]
    seed: int
    schema: str = "finitune.repair/1"


def repair(
    name: str,
    *,
    model: str | Path | None = None,
    data: str | Path | None = None,
    tokens: Ids | None = None,
    rows: Ids | None = None,
    config: Config | Sequence[Config] | None = None,
    output: str | Path | None = None,
    seed: int = 0,
) -> RepairResult:
    """Apply the remedy `name` to a copy. Ids may be numbers or text such as "6,7,10-12".

    Without `tokens` (or `rows`) those are taken that `finitune check` finds in `model`, `data` and `config`.
    Raises UnreadableInput when something needed is absent or wrong, and when `output` is already there.
    """
    chapter = _remedy(name)
    apply = chapter.function("apply")
    if apply is None:
        raise UnreadableInput(f"{name}: changes no files; `finitune causes` and the finding say what to do")
    configs: Sequence[Config] = [config] if isinstance(config, str | Path | dict) else list(config or ())  # pyright: ignore[reportAssignmentType, reportArgumentType]
    asks = inspect.signature(apply).parameters
    if "blocks" in asks:
        source, target = _places(name, model, output, "--model DIR")
        chosen = _ids(tokens, "--tokens") or _found(name, "tokens", configs, model, data)
        return _repair_model(chapter, source, target, chosen, seed)
    source, target = _places(name, data, output, "--data FILE")
    chosen = _ids(rows, "--rows") or _found(name, "rows", configs, model, data)
    return _repair_data(chapter, source, target, chosen, seed)


def _repair_model(chapter: Chapter, source: Path, output: Path, tokens: Sequence[int], seed: int) -> RepairResult:
    files, missing = weight_files(source)
    tensors, damaged = headers(files)
    if missing or damaged:
        raise UnreadableInput(f"{source}: {(missing + damaged)[0]} (expected sound weights)")
    config = source / "config.json"
    vocabulary = whole(json_object_of(config), "vocab_size", str(config)) if config.exists() else None
    embedding = input_embedding(tensors, vocabulary=vocabulary)
    if embedding is None:
        raise UnreadableInput(f"{source}: no tensor here looks like the input embedding")
    beyond = [token for token in tokens if not 0 <= token < embedding.shape[0]]
    if beyond:
        raise UnreadableInput(
            f"--tokens: {beyond[0]} is outside of {embedding.name} (expected 0 to {embedding.shape[0] - 1})"
        )
    plans = [(embedding, tokens)]
    head = output_head(tensors, vocabulary=vocabulary)
    judge = chapter.function("untrained")
    if head is not None and judge is not None and head.shape[0] >= embedding.shape[0]:
        short = judge(_blocks(head), tokens)
        plans.append((head, [token for token in tokens if short[token]]))
    with _work_directory(output) as work:
        _copy(source, work)
        changes: list[Change] = []
        for tensor, chosen in plans:
            changes += _rewrite(chapter, tensor, work / tensor.file.relative_to(source), chosen, seed)
        result = RepairResult(repair=chapter.name, output=str(output), changes=changes, seed=seed)
        write_json(work / MANIFEST, {**dataclasses.asdict(result), "model": str(source), "tokens": list(tokens)})
    return result


def _copy(source: Path, work: Path) -> None:
    """Every file, symbolic links followed; without permissions, because caches of models are read-only."""
    skip = shutil.ignore_patterns(MANIFEST)
    shutil.copytree(source, work, copy_function=shutil.copyfile, ignore=skip, dirs_exist_ok=True)


def _rewrite(chapter: Chapter, tensor: Tensor, copy: Path, tokens: Sequence[int], seed: int) -> Iterator[Change]:
    """New rows written in place into `copy`, then read back and compared."""
    if not tokens:
        return
    apply = chapter.function("apply")
    assert apply is not None
    width = tensor.shape[1] * ITEM_BYTES[tensor.dtype]
    written = dataclasses.replace(tensor, file=copy)
    try:
        new = list(apply(blocks=_blocks(tensor), tokens=tokens, seed=seed))
    except ValueError as error:
        raise UnreadableInput(f"{tensor.file}: {tensor.name}: {error}") from None
    for row, values in new:
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


def _repair_data(chapter: Chapter, source: Path, output: Path, rows: Sequence[int], seed: int) -> RepairResult:
    apply = chapter.function("apply")
    assert apply is not None
    if not is_lines_or_list(source):
        raise UnreadableInput(f"{source}: rows of a table cannot be taken out here (expected JSONL, JSON or .txt)")
    places = [row.line for row in data_rows(source)]
    beyond = [row for row in rows if not 0 <= row < len(places)]
    if beyond:
        raise UnreadableInput(f"--rows: {beyond[0]} is outside of {source} (expected 0 to {len(places) - 1})")
    result = RepairResult(
        repair=chapter.name,
        output=str(output),
        changes=[Change(file=source.name, row=row) for row in rows],
        seed=seed,
    )
    manifest = output.with_name(f"{output.name}.{MANIFEST}")
    if manifest.exists():
        raise UnreadableInput(f"{manifest}: already there (expected a new --output)")
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        _write_rows(source, temporary, lambda items: apply(items=items, rows=rows))
        kept = sum(1 for _ in data_rows(temporary))
        if kept != len(places) - len(set(rows)):
            raise UnreadableInput(f"{temporary}: {kept} rows read back, {len(places) - len(set(rows))} were expected")
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)
    lines = [places[row] for row in rows]
    write_json(manifest, {**dataclasses.asdict(result), "data": str(source), "dropped_lines": lines})
    return result


def _write_rows(source: Path, target: Path, keep: Callable[[Iterable[Any]], Iterable[Any]]) -> None:
    """The kept rows of a JSON list as a JSON list, those of a file of lines as the same bytes."""
    raw = source.read_bytes() if source.suffix == ".json" else b""
    if raw.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        items = list(keep(json.loads(raw.decode("utf-8-sig"))))
        target.write_text(json.dumps(items, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        return
    with source.open("rb") as lines, target.open("wb") as file:
        file.writelines(keep(line for line in lines if line.strip()))


def _found(
    name: str, field: str, configs: Sequence[Config], model: str | Path | None, data: str | Path | None
) -> list[int]:
    """The ids that the causes with this remedy find in what is given."""
    if data is None:
        raise UnreadableInput(f"{name}: what to repair? (expected --{field} 6,7, or --data FILE to find them)")
    facts = gather(*configs, model=model, data=data).facts
    inputs = {f.name: getattr(facts, f.name) for f in dataclasses.fields(facts)}
    if field == "rows" and facts.labels is not None:
        ids = set(np.flatnonzero(facts.labels.supervised == 0).tolist())
    else:
        ids = {i for finding in _findings(name, inputs) for i in (getattr(finding.where, field) or ())}
    if not ids:
        raise UnreadableInput(f"{data}: {name}: nothing to repair was found here (give --{field} to choose by hand)")
    return sorted(ids)


def _findings(name: str, inputs: dict[str, Any]) -> Iterator[Finding]:
    for chapter in causes().values():
        foresee = chapter.function("foresee")
        if foresee is not None and name in chapter.declared("remedies"):
            yield from ask(foresee, inputs).results


def _remedy(name: str) -> Chapter:
    found = remedies().get(name)
    if found is None:
        near = difflib.get_close_matches(name, list(remedies()), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UnreadableInput(f"{name}: no such remedy ({hint}expected one of {', '.join(remedies())})")
    return found


def _places(name: str, source: str | Path | None, output: str | Path | None, option: str) -> tuple[Path, Path]:
    if source is None:
        raise UnreadableInput(f"{name}: {option} is needed")
    if output is None:
        raise UnreadableInput(f"{name}: --output is needed (the original is never changed)")
    source, output = Path(source), Path(os.path.normpath(output))
    if not source.exists() or source.is_dir() != (option == "--model DIR"):
        raise UnreadableInput(f"{source}: not there or of the wrong kind (expected {option})")
    if output.exists() or output.is_symlink():
        raise UnreadableInput(f"{output}: already there (expected a new --output)")
    if source.resolve() in (output.parent.resolve(), *output.parent.resolve().parents):
        raise UnreadableInput(f"{output}: inside of {source} (expected a place beside it)")
    if not output.parent.is_dir():
        raise UnreadableInput(f"{output.parent}: no such directory (expected the parent of --output)")
    return source, output


def _ids(ids: Ids | None, option: str) -> list[int]:
    """Numbers, or text such as "6,7,10-12"; sorted, each once."""
    if ids is None:
        return []
    if not isinstance(ids, str):
        return sorted({int(i) for i in ids})
    out: set[int] = set()
    for part in ids.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UnreadableInput(f"{option} {ids!r}: {part.strip()!r} is no number (expected for example 6,7,10-12)")
        out.update(range(int(first), int(last if dash else first) + 1))
    return sorted(out)


def _blocks(tensor: Tensor) -> Callable[[], Iterator[tuple[int, npt.NDArray[np.float32]]]]:
    rows = tensor.shape[0]
    return lambda: (
        (first, read_rows(tensor, first, min(BLOCK_ROWS, rows - first))) for first in range(0, rows, BLOCK_ROWS)
    )


def _norm(row: npt.NDArray[np.float32]) -> float:
    wide = row.astype(np.float64)
    return math.sqrt(float(wide @ wide))


@contextmanager
def _work_directory(output: Path) -> Generator[Path, None, None]:
    """A directory beside `output` that takes its name when all went well and is gone when not."""
    work = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        work.mkdir()
    except OSError as error:
        raise UnreadableInput(f"{work}: {reason(error)} (expected to write beside --output)") from None
    try:
        yield work
        work.rename(output)
    finally:
        shutil.rmtree(work, ignore_errors=True)
