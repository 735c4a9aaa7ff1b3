"""Where a file that another one names lies: nowhere but in its own folder and in the project that it belongs to."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

MAX_ABOVE = 3
"""So many folders above a file are looked at for the root of a project without git."""
ROOTS = ("pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "README.md")
"""What stands in the root of such a project."""


def beside(file: str, named: str, folders: Sequence[str] = ()) -> Path:
    """From the working directory, where `file` lies below it, beside the file, or in the root of its project.

    `folders` are those that a script changes to before. A file that is nowhere is said to be beside the other.
    """
    here = Path(file).resolve().parent
    names = [named, *(str(Path(folder) / named) for folder in folders)]
    below = [Path()] if here.is_relative_to(Path.cwd()) else []
    places = [folder / name for folder in (*below, here) for name in names]
    places += [root_of(file) / name for name in names if ".." not in Path(name).parts]
    return next((place for place in places if place.is_file()), Path(file).parent / named)


def root_of(file: str | Path) -> Path:
    """The folder above the file that git, or a project without it, begins in; the file's own where there is none.

    A folder that everybody may write to is no project: what lies there may be a stranger's.
    """
    here = Path(file).resolve().parent
    return next(_roots(here), here)


def _roots(here: Path) -> Iterator[Path]:
    folders = [folder for folder in (here, *here.parents) if not _is_public(folder)]
    yield from (folder for folder in folders if (folder / ".git").exists())
    near = (here, *here.parents)[: MAX_ABOVE + 1]
    yield from (folder for folder in folders if folder in near and any((folder / name).exists() for name in ROOTS))


def _is_public(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IWOTH)
