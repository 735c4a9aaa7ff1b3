"""What the program holds in variables: of its functions that run, and of its modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from finitune.monitor.user_code.source_line import is_users, user_frames


def program_values() -> Iterator[Any]:
    """Each variable's value, some more than once."""
    frames = list(user_frames())
    spaces = {id(frame.f_globals): frame.f_globals for frame in frames}
    for module in list(sys.modules.values()):
        space = getattr(module, "__dict__", {})
        file = space.get("__file__")
        if isinstance(file, str) and is_users(file):
            spaces[id(space)] = space
    for space in (*(frame.f_locals for frame in frames), *spaces.values()):
        yield from list(space.values())
