"""Where a file that another one names lies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

MAX_ABOVE = 3
"""So many folders above a file are looked into."""


def beside(file: str, named: str, folders: Sequence[str] = (), *, above: int = MAX_ABOVE) -> Path:
    """From the working directory, or beside the file that names it or so many folders above.

    `folders` are those that a script changes to before. A file that is nowhere is said to be beside the other.
    """
    here = Path(file).resolve().parent
    names = [named, *(str(Path(folder) / named) for folder in folders)]
    places = [Path(name) for name in names]
    places += [folder / name for folder in [here, *here.parents][: above + 1] for name in names]
    return next((place for place in places if place.is_file()), Path(file).parent / named)
