"""A bar for long work: on standard error, on a terminal only, and only when the work has lasted a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")

DELAY = 1.0
"""Seconds; a bar that flickers past tells nobody anything."""


def bar(items: Iterable[Item], what: str, total: int | None) -> Iterator[Item]:
    """The items as they are; while they come, a bar says how far `what` is. Without a `total` it only counts."""
    if not sys.stderr.isatty():
        yield from items
        return
    begun, shown, task = time.monotonic(), None, None
    try:
        for done, item in enumerate(items):
            if shown is None and time.monotonic() - begun >= DELAY:
                shown = _start()
                task = shown.add_task(what, total=total)
            if shown is not None:
                shown.update(task, completed=done)
            yield item
    finally:
        if shown is not None:
            shown.stop()


def _start() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    progress.start()
    return progress
