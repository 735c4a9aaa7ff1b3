"""The variables of a running frame, read so that it keeps none of them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from types import FrameType
from typing import Any, Protocol

_ONLY_OURS = 3
"""References to what a frame shows where nobody else has it: the frame's own, that of a variable, that of a call."""


class _Frame(Protocol):
    @property
    def f_globals(self) -> Mapping[str, Any]: ...
    @property
    def f_locals(self) -> Mapping[str, Any]: ...


def variables_of(frame: FrameType | _Frame) -> dict[str, Any]:
    """All that its code can name, in a dictionary of its own."""
    return {**frame.f_globals, **locals_of(frame)}


def locals_of(frame: FrameType | _Frame) -> Mapping[str, Any]:
    """As they are now. Up to Python 3.12 the frame of a function keeps the dictionary that it shows as `f_locals` until
    it ends, and with it what the function has deleted since; `locals()` of the program gives that same one.
    """
    shown = frame.f_locals
    if not isinstance(frame, FrameType) or type(shown) is not dict or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return shown
    variables = dict(shown)
    if sys.getrefcount(shown) <= _ONLY_OURS and sys.gettrace() is None:  # a debugger writes it back to the frame
        shown.clear()
    return variables
