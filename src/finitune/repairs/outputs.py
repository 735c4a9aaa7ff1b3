"""How a repair writes: a new name, a temporary one until all is complete, a manifest, and digests for the way back."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import shutil
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from finitune.contained import contained
from finitune.finding import UnreadableInput
from finitune.repairs.result import SCHEMA
from finitune.sources.text import json_object_of, reason

MANIFEST = "finitune-repair.json"
KEPT = "before-repair"
"""Ending of the name under which the original of a patched file is kept beside it."""


_LEFT = re.compile(rf"(?:\.{re.escape(MANIFEST)}|\.{KEPT})?\.([0-9]{{1,9}})\.tmp")
"""What follows the name of a file in those of its temporaries, and of what is written beside it."""


def manifest_of(file: Path) -> Path:
    """Where the manifest of a single file lies."""
    return file.with_name(f"{file.name}.{MANIFEST}")


def kept_of(file: Path) -> Path:
    """Where the original of a patched file lies."""
    return file.with_name(f"{file.name}.{KEPT}")


def read_manifest(path: Path) -> Mapping[str, Any]:
    """A manifest of ours. Raises UnreadableInput for anything else."""
    found = json_object_of(path)
    if found.get("schema") != SCHEMA or not isinstance(found.get("undo_by"), str):
        raise UnreadableInput(f"{path}: expected a manifest that finitune repair can undo")
    return found


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            found.update(block)
    return found.hexdigest()


def digests(directory: Path) -> dict[str, str]:
    """Of every file below a directory but its manifest, by its relative path."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() or path.is_symlink())
    return {
        path.relative_to(directory).as_posix(): "link" if path.is_symlink() else digest(path)
        for path in files
        if path != directory / MANIFEST
    }


def places(name: str, source: str | Path | None, output: str | Path | None, option: str) -> tuple[Path, Path]:
    """Where to read and where to write. Raises UnreadableInput for an output that is there or lies in the source."""
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


def temporary(path: Path) -> Path:
    """A name beside `path` that nobody takes for it; those of repairs that were killed are removed."""
    for left in path.parent.glob(f".{glob.escape(path.name)}*.tmp"):
        match = _LEFT.fullmatch(left.name.removeprefix(f".{path.name}"))
        if match and not _runs(int(match[1])):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def _runs(pid: int) -> bool:
    """Whether a process has this number; where that cannot be asked it counts as running."""
    if os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


@contextmanager
def work_directory(output: Path) -> Generator[Path, None, None]:
    """A directory beside `output` that takes its name when all went well and is gone when not."""
    work = temporary(output)
    try:
        work.mkdir()
    except OSError as error:
        raise UnreadableInput(f"{work}: {reason(error)} (expected to write beside --output)") from None
    try:
        yield work
        work.rename(output)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def copy_directory(source: Path, work: Path, *, weights: Collection[Path], without: Collection[Path] = ()) -> None:
    """Every file but those in `without`, permissions left behind, because caches of models are read-only.

    Links are followed within the directory, to its `weights`, which were read before, and into the files of the same
    model in a cache of the hub. Raises UnreadableInput for any other link, for a pipe and for a device.
    """
    # in a cache of the hub models--NAME/snapshots/REVISION/FILE is a link into models--NAME/blobs
    real = source.resolve()
    homes = (real, real.parent / "blobs", real.parent.parent / "blobs")
    for directory, directories, files in os.walk(source):
        for name in directories:
            if (Path(directory) / name).is_symlink():
                raise UnreadableInput(f"{Path(directory) / name}: a link to a directory (expected a copy: cp -rL)")
        for file in (Path(directory) / name for name in files):
            if file not in weights and file not in without:
                _refuse_stray(homes, file)

    def leave_out(directory: str, names: list[str]) -> list[str]:
        return [name for name in names if name == MANIFEST or Path(directory) / name in without]

    shutil.copytree(source, work, copy_function=shutil.copyfile, ignore=leave_out, dirs_exist_ok=True)


def _refuse_stray(homes: Sequence[Path], file: Path) -> None:
    home = next((home for home in homes if file.resolve().is_relative_to(home)), homes[0])
    try:
        contained(home, file, expected="a file of the model; of a link its copy, as cp -rL makes it,")
    except FileNotFoundError:
        raise UnreadableInput(f"{file}: leads nowhere (expected a file of the model)") from None
