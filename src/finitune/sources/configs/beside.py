"""Where a file that another one names lies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

MAX_ABOVE = 3
"""So many folders above a file are looked into."""


def beside(file: str, named: str, folders: Sequence[str] = ()) -> Path:
    """From the working directory, or beside the file that names it or a few folders above.

    `folders` are those that a script changes to before. A file that is nowhere is said to be beside the other.
    """
    here = Path(file).resolve().parent
    names = [named, *(str(Path(folder) / named) for folder in folders)]
    places = [Path(name) for name in names]
    places += [above / name for above in [here, *here.parents][: MAX_ABOVE + 1] for name in names]
    return next((place for place in places if place.is_file()), Path(file).parent / named)
