"""Leave out the rows of the data that have no supervised token.

## What it changes

Writes a copy of the data file without these rows; every other row is kept as it is, byte for byte in a file of
lines. Which rows were dropped is listed in the manifest beside it.

## When it is safe

The dropped rows taught nothing: all of their labels were ignored. It is safe when they are few. When they are many,
the settings are wrong rather than the data: raise max_length, truncate the prompt, or fix the template first.

## References

Lightning-AI/litgpt#150, bytedance/UniVR#13.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import PurePath
from typing import TypeVar

import numpy as np

from finitune.facts import Labels
from finitune.finding import Remedy

safety = "safe"
rewrites = "data"

MAX_COMMAND = 8000
"""Characters of a row list that a shell and a reader still take."""

Item = TypeVar("Item")


def propose(labels: Labels) -> Remedy | None:
    rows = np.flatnonzero(labels.supervised == 0).tolist()
    listed = ranges(rows)
    if not rows or labels.source is None or len(rows) == len(labels.supervised) or len(listed) > MAX_COMMAND:
        return Remedy() if rows else None
    path = PurePath(labels.source)
    output = path.with_name(f"{path.stem}-supervised{path.suffix}")
    command = ["finitune", "repair", "drop-unsupervised-rows", "--data", str(path), "--rows", listed]
    return Remedy(command=shlex.join([*command, "--output", str(output)]))


def apply(items: Iterable[Item], rows: Sequence[int]) -> Iterator[Item]:
    """The items whose index, from 0, is not in `rows`."""
    dropped = frozenset(rows)
    return (item for index, item in enumerate(items) if index not in dropped)


def ranges(rows: Sequence[int]) -> str:
    """Sorted row numbers, runs of neighbours joined: "0,3-5"."""
    runs = [[row for _, row in run] for _, run in groupby(enumerate(rows), key=lambda pair: pair[1] - pair[0])]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
