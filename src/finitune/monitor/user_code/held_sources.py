"""The sources of random numbers that the program holds in variables: of its functions that run, and of its modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from finitune.monitor.probes.random_sources import state_kept
from finitune.monitor.user_code.frame_variables import locals_of
from finitune.monitor.user_code.source_line import user_frames, user_modules


@contextmanager
def sources_kept(values: Iterable[Any] = ()) -> Iterator[None]:
    """Afterwards these, and those among `values`, have the states that they have now."""
    found = {id(each): back for each in [*values, *_variables()] if (back := state_kept(each)) is not None}
    try:
        yield
    finally:
        for back in found.values():
            back()


def attributes(thing: Any) -> Iterable[Any]:
    """What an object of the program's holds."""
    return list(getattr(thing, "__dict__", {}).values())


def _variables() -> Iterator[Any]:
    """The value of each, some more than once."""
    frames = list(user_frames())
    spaces = {id(frame.f_globals): frame.f_globals for frame in frames}
    spaces |= {id(space): space for space in user_modules()}
    for space in (*(locals_of(frame) for frame in frames), *spaces.values()):
        yield from list(space.values())
