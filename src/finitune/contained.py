"""Files in a directory that a stranger gave: opened only where they are regular files that lie in it."""

from __future__ import annotations

import stat
from pathlib import Path

from finitune.finding import UnreadableInput


def contained(directory: Path, path: Path, *, expected: str, most: int | None = None) -> Path:
    """`path` itself, a regular file within `directory` whatever links lead to it, of at most `most` bytes.

    Raises FileNotFoundError where there is none, UnreadableInput for a pipe, a device, and a link out of `directory`.
    """
    try:
        real, home = path.resolve(strict=True), directory.resolve(strict=True)
        found = real.stat()
    except FileNotFoundError:
        raise
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links is one or the other, by version of Python
        reason = getattr(error, "strerror", None) or "not the name of a file"
        raise UnreadableInput(f"{path}: {reason.lower()} (expected {expected})") from None
    if not real.is_relative_to(home):
        raise UnreadableInput(f"{path}: leads out of {directory} (expected {expected} in it)")
    if not stat.S_ISREG(found.st_mode):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "a pipe or a device"
        raise UnreadableInput(f"{path}: {kind} (expected {expected})")
    if most is not None and found.st_size > most:
        raise UnreadableInput(f"{path}: {found.st_size} bytes (expected {expected} of at most {most})")
    return path
