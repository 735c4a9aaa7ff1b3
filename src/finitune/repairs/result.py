"""What `finitune repair` answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from finitune.finding import Printed, Remedy

SCHEMA = "finitune.repair/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row that was written or dropped, one tensor that was cast, or one key that was set.

    Norms are L2 norms, as stored. `before` and `after` are the values of a key (None where it was not there), or the
    dtypes of a tensor, as torch spells them.
    """

    file: str
    row: int | None = None
    tensor: str | None = None
    norm_before: float | None = None
    norm_after: float | None = None
    key: str | None = None
    before: Any = None
    after: Any = None
    vanished: int | None = None
    """Elements that a cast turned to zero."""
    remedy: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Healed:
    """One remedy that held in a run of mode heal, at these steps; `places` are samples, where it is about some."""

    remedy: Remedy
    cause: str
    steps: Sequence[int]
    places: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairResult(Printed):
    """What `finitune repair` did."""

    repair: str
    output: str
    changes: Sequence[Change]
    seed: int
    diff: str | None = None
    """Of patched files, in the unified format."""
    written: bool = True
    not_applied: Sequence[str] = ()
    """Patches that no file here takes, and why."""
    by_hand: Sequence[Healed] = ()
    """What a run was healed by and no file takes."""
    undo: Sequence[str] = ()
    """The files that `finitune repair --undo` takes."""
    schema: str = SCHEMA
