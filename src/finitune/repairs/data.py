"""Remedies that leave rows out of a data file: a copy, read back, with a manifest beside it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from finitune.chapter import Chapter
from finitune.finding import UnreadableInput
from finitune.recording import write_json
from finitune.repairs.outputs import digest, manifest_of, temporary
from finitune.repairs.result import Change, RepairResult
from finitune.sources.data.rows import is_lines_or_list
from finitune.sources.data.rows import rows as data_rows


def repair_data(chapter: Chapter, source: Path, output: Path, rows: Sequence[int], seed: int) -> RepairResult:
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
        undo=[str(output)],
    )
    manifest = manifest_of(output)
    if manifest.exists():
        raise UnreadableInput(f"{manifest}: already there (expected a new --output)")
    work = temporary(output)
    try:
        _write_rows(source, work, lambda items: apply(items=items, rows=rows))
        kept = sum(1 for _ in data_rows(work))
        if kept != len(places) - len(set(rows)):
            raise UnreadableInput(f"{work}: {kept} rows read back, {len(places) - len(set(rows))} were expected")
        work.replace(output)
    finally:
        work.unlink(missing_ok=True)
    lines = [places[row] for row in rows]
    seal = {"undo_by": "removing", "after": digest(output)}
    write_json(manifest, {**dataclasses.asdict(result), **seal, "data": str(source), "dropped_lines": lines})
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
