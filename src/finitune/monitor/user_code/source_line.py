"""The user's own source line: the innermost frame that belongs neither to torch nor to finitune nor to a library."""

from __future__ import annotations

import linecache
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from finitune.monitor.user_code.frame_variables import locals_of

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parents[1])
_WATCHING = ("probes", "origin/operator_watch.py", "replay/limits.py", "statements/new_tensors.py")
_TRANSPARENT = (__file__, *(str(Path(_OURS, *name.split("/"))) for name in _WATCHING))
"""What observes the calls of the user's program lies between its frames."""
_LIBRARIES = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
LONGEST = 100
FRAMES = 8
"""Of an error of finitune itself, that are recorded."""


def user_line() -> str | None:
    """`train.py:41 in compute_loss: loss = a / b` of the frame that runs now; None for what a replay runs by itself.

    The innermost frame outside of torch; where that is a library's, the user's own frame is added to it.
    """
    frame: FrameType | None = sys._getframe(1)
    library: str | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_OURS):
            if not file.startswith(_TRANSPARENT):
                return library
        elif not file.startswith((_TORCH, "<frozen", "<string>")):
            if not _is_library(file):
                own = described(file, frame.f_lineno, frame.f_code.co_name)
                return own if library is None else f"{library}, called from {own}"
            library = library or described(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return library


def calling_line() -> str | None:
    """The same for what is looked at from within a hook: the line of the user's that runs now."""
    frame = next(user_frames(), None)
    return None if frame is None else described(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


def user_frames() -> Iterator[FrameType]:
    """The running frames of the user's own program, innermost first."""
    return (frame for frame in running_frames() if is_users(frame.f_code.co_filename))


def user_modules() -> Iterator[dict[str, Any]]:
    """The variables of each imported module that is a file of the user's."""
    for module in list(sys.modules.values()):
        space = getattr(module, "__dict__", {})
        file = space.get("__file__")
        if isinstance(file, str) and is_users(file):
            yield space


def running_frames() -> Iterator[FrameType]:
    """All of this thread, innermost first: that of whoever asks is the first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_running(function: Any) -> bool:
    """Whether a call of this function of Python's runs in this thread."""
    code = getattr(function, "__code__", None)
    return code is not None and any(frame.f_code is code for frame in running_frames())


def described(file: str, line: int, function: str) -> str:
    """`train.py:41 in compute_loss: loss = a / b`, without the function at the top level of a file."""
    text = linecache.getline(file, line).strip()
    where = f"{Path(file).name}:{line}" + ("" if function == "<module>" else f" in {function}")
    return f"{where}: {text[:LONGEST]}" if text else where


def frames_of(error: BaseException) -> list[str]:
    """Where it was raised, innermost last: the last `FRAMES` frames of its traceback, as `described`."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    return [described(frame.filename, frame.lineno or 0, frame.name) for frame in frames]


def is_ours(file: str) -> bool:
    """True for a file of what lives in the user's process and observes it."""
    return file.startswith(_OURS)


@lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """True for a file of the user's own program."""
    return not (file.startswith((_TORCH, _OURS, "<frozen", "<string>")) or _is_library(file))


def _is_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or "site-packages" in file


def running_objects() -> set[int]:
    """Objects whose method runs now: one that runs the backward is a trainer, and no optimizer. A `step` may have been
    given what runs it.
    """
    found: set[int] = set()
    within: set[CodeType] = set()
    for frame in running_frames():
        values = locals_of(frame)
        given = frame.f_code.co_name == "step" and any(
            getattr(value, "__code__", None) in within for value in values.values()
        )
        if not given:
            found |= {id(values[name]) for name in ("self", "cls") if name in values}
        within.add(frame.f_code)
    return found
