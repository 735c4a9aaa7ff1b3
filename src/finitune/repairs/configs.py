"""Remedies that change settings: a diff of the files of a run, or the patched files, the originals kept beside them.

A patched file takes the name of its original, because other files name it; the original lies beside it as
NAME.before-repair, and NAME.finitune-repair.json tells what was changed and is what `--undo` reads.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finitune.chapter import Chapter
from finitune.finding import Remedy, UnreadableInput
from finitune.preflight import foresee
from finitune.recording import write_json
from finitune.repairs.outputs import digest, kept_of, manifest_of, read_manifest, temporary
from finitune.repairs.result import SCHEMA, Change, RepairResult
from finitune.sources.configs.runs import Config
from finitune.sources.editing.patching import Patched, patched, standings_each
from finitune.sources.editing.spelling import NoPlace, Setting, Standing, settled
from finitune.sources.result import Reading
from finitune.sources.text import reason

BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proposed:
    """A remedy with a patch for one run, and the file that its finding names."""

    remedy: Remedy
    run: int
    file: str | None = None


def repair_configs(
    chapter: Chapter | None,
    readings: Sequence[Reading],
    configs: Sequence[Config],
    model: str | Path | None,
    *,
    apply: bool,
    unsafe: bool = False,
) -> RepairResult:
    """The patches that `check` proposes for errors and warnings, or those of one remedy; written where `apply` says so.

    Without a remedy only safe ones are taken, the others too where `unsafe` says so; what a finding only tells is not.
    Raises UnreadableInput when the remedy has nothing to set here, or a file cannot be changed safely.
    """
    proposed, left = _proposals(chapter, readings, unsafe=unsafe)
    return _repaired(chapter, proposed, configs, model, apply=apply, left=left)


def repair_proposed(
    remedies: Sequence[Remedy], configs: Sequence[Config], model: str | Path | None, *, apply: bool
) -> RepairResult:
    """These patches, in every run that the configurations start. Raises UnreadableInput as `repair_configs` does."""
    runs = range(len(standings_each(configs, model)) if configs or model else 0)
    proposed = [_Proposed(remedy=one, run=run) for run in runs for one in remedies]
    return _repaired(None, proposed, configs, model, apply=apply)


def _repaired(
    chapter: Chapter | None, proposed: Sequence[_Proposed], configs: Sequence[Config], model: str | Path | None, *,
    apply: bool, left: Sequence[str] = (),
) -> RepairResult:  # fmt: skip
    settings, remedies, refused = _settings(proposed, standings_each(configs, model) if proposed else [])
    refused += left
    files = patched(settings)
    if chapter and not settings and refused:
        raise UnreadableInput(f"{refused[0]} (what it says is to be done by hand)")
    if apply:
        _write(chapter, files, remedies)
    changes = [
        Change(file=c.file, key=c.key, before=c.before, after=c.after, remedy=remedies[c.file, c.key])
        for file in files
        for c in file.changes
    ]
    return RepairResult(
        repair=chapter.name if chapter else "all", output=", ".join(str(file.file) for file in files), seed=0,
        changes=changes, diff="".join(map(diff, files)), written=apply, not_applied=refused,
        undo=[str(file.file) for file in files] if apply else (),
    )  # fmt: skip


def _proposals(
    chapter: Chapter | None, readings: Sequence[Reading], *, unsafe: bool
) -> tuple[list[_Proposed], list[str]]:
    """The patches that check proposes for each run; where none is of this remedy, what it says of their facts.

    And one line for each that is left out because it has to be read first.
    """
    proposed = [one for run, reading in enumerate(readings) for one in _found(run, reading, notes=chapter is not None)]
    if chapter is None:
        taken = [one for one in proposed if unsafe or one.remedy.safety == "safe"]
        left = {one.remedy.name: one.remedy.safety for one in proposed if one not in taken}
        return taken, [f"{name}: {safety}, read what it changes; --unsafe takes it" for name, safety in left.items()]
    own = [one for one in proposed if one.remedy.name == chapter.name]
    own = own or [one for run, reading in enumerate(readings) for one in _said(chapter, run, reading)]
    if not own:
        raise UnreadableInput(f"{chapter.name}: nothing to set here (`finitune check` says what these files need)")
    return own, []


def _found(run: int, reading: Reading, *, notes: bool) -> Iterator[_Proposed]:
    for finding in foresee(reading.facts, reading.not_checked).findings:
        if finding.remedy and finding.remedy.patch and (notes or finding.severity != "info"):
            yield _Proposed(remedy=finding.remedy, run=run, file=finding.where.file)


def _said(chapter: Chapter, run: int, reading: Reading) -> Iterator[_Proposed]:
    for remedy in chapter.ask("propose", reading.facts.by_name()).results:
        if remedy.patch:
            yield _Proposed(remedy=remedy, run=run)


def _settings(
    proposed: Sequence[_Proposed], found: Sequence[Sequence[Standing]]
) -> tuple[list[Setting], dict[tuple[str, str], str], list[str]]:
    """What is set, by which remedy, and what was left out. Of two that disagree the first counts."""
    taken: dict[tuple[str, int, str], tuple[Setting, str]] = {}
    refused: list[str] = []
    for one in proposed:
        name = one.remedy.name
        try:
            settings = settled(one.remedy.patch or {}, found[one.run], one.file)
        except NoPlace as error:
            refused.append(f"{name}: {error}")
            continue
        held = [taken.get(_place(setting)) for setting in settings]
        other = next((h for s, h in zip(settings, held, strict=True) if h and h[0].value != s.value), None)
        if other:
            refused.append(f"{name}: {other[0].key} is set otherwise by {other[1]}")
            continue
        taken |= {_place(setting): (setting, name) for setting in settings}
    names = {(file, key): name for (file, _, key), (_, name) in taken.items()}
    return [setting for setting, _ in taken.values()], names, list(dict.fromkeys(refused))


def _place(one: Setting) -> tuple[str, int, str]:
    return one.file, one.standing.launch, one.key


def diff(file: Patched) -> str:
    """The change of one file in the unified format, as `patch -p0` takes it."""
    before, after = (_lines(text) for text in (file.before, file.after))
    lines = difflib.unified_diff(before, after, str(file.file), str(file.file))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _lines(text: str) -> list[str]:
    """Lines end at line feeds only, as other programs count them."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def _write(chapter: Chapter | None, files: Sequence[Patched], remedies: Mapping[tuple[str, str], str]) -> None:
    """All of the files or none: each is staged and read back before the first is renamed."""
    with ExitStack() as cleaning:
        staged: list[tuple[Patched, Path]] = []
        for file in files:
            _refuse_unsafe(file.file)
            new = temporary(file.file)
            cleaning.callback(new.unlink, missing_ok=True)
            _stage(file, new)
            staged.append((file, new))
        with ExitStack() as back:
            for file, new in staged:
                manifest = manifest_of(file.file)
                back.callback(_take_back, file.file, file.file.read_bytes(), _bytes(manifest))
                _keep(file, new, chapter, remedies)
                new.replace(file.file)
            back.pop_all()


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _refuse_unsafe(file: Path) -> None:
    if file.is_symlink():
        raise UnreadableInput(f"{file}: a symbolic link (expected the file itself; give a copy)")
    if manifest_of(file).exists():
        held = read_manifest(manifest_of(file))
        if held.get("after") != digest(file) or not kept_of(file).is_file():
            raise UnreadableInput(
                f"{manifest_of(file)}: of an earlier repair, and {file.name} has changed since (move it away first)"
            )
    elif kept_of(file).exists() or kept_of(file).is_symlink():
        raise UnreadableInput(f"{kept_of(file)}: already there (expected room for the original)")


def _stage(file: Patched, new: Path) -> None:
    raw = file.file.read_bytes()
    bom = BOM if raw.startswith(BOM) else b""
    if raw.removeprefix(BOM) != file.before.encode():
        raise UnreadableInput(f"{file.file}: changed while it was read (expected nobody else to write it)")
    wanted = bom + file.after.encode()
    try:
        with new.open("xb") as out:
            out.write(wanted)
            out.flush()
            os.fsync(out.fileno())
        shutil.copymode(file.file, new)
    except OSError as error:
        raise UnreadableInput(f"{new}: {reason(error)} (expected to write beside {file.file.name})") from None
    if new.read_bytes() != wanted:
        raise UnreadableInput(f"{new}: did not read back as written")


def _keep(file: Patched, new: Path, chapter: Chapter | None, remedies: Mapping[tuple[str, str], str]) -> None:
    """The original beside it, unless an earlier repair kept it, and the manifest of all that was changed since."""
    kept, manifest = kept_of(file.file), manifest_of(file.file)
    earlier: Mapping[str, Any] = read_manifest(manifest) if manifest.exists() else {}
    if not earlier:
        half = temporary(kept)
        try:
            shutil.copy2(file.file, half)
            half.replace(kept)
        finally:
            half.unlink(missing_ok=True)
    changes = [
        {**dataclasses.asdict(change), "remedy": remedies[change.file, change.key]} for change in file.changes
    ]  # fmt: skip
    write_json(manifest, {
        "schema": SCHEMA, "undo_by": "restoring", "repair": chapter.name if chapter else "all",
        "output": str(file.file), "kept": kept.name, "before": digest(kept), "after": digest(new),
        "changes": [*earlier.get("changes", []), *changes],
    })  # fmt: skip


def _take_back(file: Path, raw: bytes, manifest: bytes | None) -> None:
    """After a failure: the file as it was, and beside it what an earlier repair had left."""
    if file.read_bytes() != raw:
        temporary(file).write_bytes(raw)
        shutil.copymode(file, temporary(file))
        temporary(file).replace(file)
    if manifest is None:
        manifest_of(file).unlink(missing_ok=True)
        kept_of(file).unlink(missing_ok=True)
    else:
        manifest_of(file).write_bytes(manifest)


def restore(file: Path) -> RepairResult:
    """Undo the patches of one file, byte for byte. Raises UnreadableInput when it has changed since."""
    kept, manifest = kept_of(file), manifest_of(file)
    held: Mapping[str, Any] = read_manifest(manifest)
    now = digest(file) if file.is_file() and not file.is_symlink() else None
    if now == held.get("after"):
        if not kept.is_file() or digest(kept) != held.get("before"):
            raise UnreadableInput(f"{kept}: not the original any more (expected what the repair kept)")
        kept.replace(file)
    elif now is None or now != held.get("before"):
        raise UnreadableInput(f"{file}: changed since the repair (expected it as the repair left it)")
    kept.unlink(missing_ok=True)
    manifest.unlink()
    return RepairResult(repair="undo", output=str(file), changes=[], seed=0)
