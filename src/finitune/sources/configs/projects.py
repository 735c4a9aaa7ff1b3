"""A project folder -> the files in it that start trainings.

Nothing outside the folder is looked at, no link is followed; environments, caches, hidden folders
and tests are left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from finitune.finding import NotChecked, UnreadableInput
from finitune.sources.configs.runs import MAY_TRAIN, TREES, Named, is_config, runs_of, walk
from finitune.sources.configs.shell import SUFFIXES as SHELL_SUFFIXES

MAX_FILES = 4000
MAX_STARTS = 50
MAX_DEPTH = 8
MAX_BYTES = {".py": 2**21, ".ipynb": 2**25}
MAX_CONFIG_BYTES = 2**18
"""Larger JSON and YAML in a project is data."""

PASSED_OVER = {
    "node_modules", "__pycache__", "site-packages", "venv", "env", "build", "dist", "runs", "wandb", "mlruns", "tests",
    "test", "third_party",
}  # fmt: skip
OF_MODELS = {
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "trainer_state.json", "preprocessor_config.json", "adapter_config.json", "package.json", "vocab.json",
}  # fmt: skip
"""Files that lie beside weights, or belong to other tools."""

PROGRAMS = {".py", ".ipynb"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """What a folder holds: the files that start a training, one run each, and what could not be read."""

    starts: Sequence[Path]
    not_checked: Sequence[NotChecked]
    files: int


def project_of(folder: Path) -> Project:
    """The trainings of a folder. Raises UnreadableInput where there is none."""
    files = sorted(_files(folder))
    more = len(files) > MAX_FILES
    left_out: list[NotChecked] = []
    starts: list[Path] = []
    named: set[Path] = set()
    within: set[Path] = set()
    for file in files[:MAX_FILES]:
        try:
            if not _may_configure(file):
                continue
            known = [one for run in runs_of([file]) for one in walk(run)]
        except UnreadableInput as error:
            left_out.append(NotChecked(input="config", why=str(error), given=file.suffix in TREES))
            continue
        starts.append(file)
        paths = {Path(one.file).resolve() for one in known if isinstance(one, Named)}
        named |= paths - {file.resolve()}
        held = [one for one in known if isinstance(one, Named) and one.format.parts and Path(one.file).is_file()]
        within |= {folder.resolve() for one in held for folder in _parts(one)}
    starts = [file for file in starts if file.resolve() not in named and not within & set(file.resolve().parents)]
    if not starts:
        raise UnreadableInput(
            f"{folder}: no program, notebook, launch script or configuration of a training among its "
            f"{len(files)} files (a model directory is given with --model)"
        )
    if more or len(starts) > MAX_STARTS:
        what = f"{MAX_FILES} files" if more else f"{MAX_STARTS} trainings"
        why = f"{folder}: more than {what}, the others were not looked at; name a part of it"
        left_out.append(NotChecked(input="config", why=why))
    return Project(starts=starts[:MAX_STARTS], not_checked=left_out, files=len(files))


def _parts(one: Named) -> Iterable[Path]:
    return one.format.parts(one.data, one.file) if one.format.parts else ()


def _may_configure(file: Path) -> bool:
    """Whether the file is of a known format. Raises UnreadableInput for one that was to be of one."""
    limit = MAX_BYTES.get(file.suffix, MAX_CONFIG_BYTES)
    if file.stat().st_size > limit:
        return False
    if file.suffix in PROGRAMS and not MAY_TRAIN.search(file.read_text(encoding="utf-8", errors="replace")):
        return False
    return is_config(file)


def _files(folder: Path) -> Iterator[Path]:
    """Files that may configure a training, a few more than are looked at."""
    todo: list[tuple[Path, int]] = [(folder, 0)]
    seen = 0
    while todo and seen <= MAX_FILES:
        here, depth = todo.pop()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError:
            continue
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            continue
        for entry in entries:
            name = entry.name
            if entry.is_symlink() or name.startswith("."):
                continue
            if entry.is_dir():
                todo += [(here / name, depth + 1)] if name not in PASSED_OVER and depth < MAX_DEPTH else []
            elif entry.is_file() and _may_be_one(name):
                seen += 1
                yield here / name


def _may_be_one(name: str) -> bool:
    readable = Path(name).suffix in PROGRAMS | TREES | SHELL_SUFFIXES
    return readable and name not in OF_MODELS and not name.startswith("test_")
