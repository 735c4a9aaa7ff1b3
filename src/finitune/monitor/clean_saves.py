"""The checkpoints that the run itself wrote with finite weights: what to resume from where nothing else is left.

A file belongs to the checkpoint that is its directory where that is one of several (`checkpoint-500`, `step_100`), and
several files that hold all weights together are one. What was written under another name and renamed since is found
again; what is gone is not offered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ONE_OF_SEVERAL = re.compile(r"checkpoint|ckpt|(step|epoch|iter|global_step)s?[-_=]?\d", re.IGNORECASE)
MOST = 16
"""Of which it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanSave:
    path: str
    step: int
    """Whose weights it holds."""

    @property
    def text(self) -> str:
        return f"resume from {self.path}, the last checkpoint whose weights are finite (step {self.step})"


@dataclass(slots=True, kw_only=True)
class CleanSaves:
    """Filled while the run goes on; the newest is last."""

    known: list[CleanSave] = field(default_factory=list[CleanSave])
    begun: CleanSave | None = None
    weights: set[int] = field(default_factory=set[int])
    """In what was written of it so far."""

    def written(self, name: str, step: int, weights: set[int], all_weights: set[int]) -> CleanSave | None:
        """A file or a directory with finite `weights` (identities of storages) has been written; what it completes."""
        path = Path(name).absolute()
        whole = path.parent if ONE_OF_SEVERAL.search(path.parent.name) else path
        found = CleanSave(path=str(whole), step=step)
        self.weights = weights | (self.weights if self.begun == found else set())
        self.begun = found
        if not all_weights or not all_weights <= self.weights:
            return None
        self.known = [*(one for one in self.known if one.path != found.path), found][-MOST:]
        return found

    def newest(self, latest: int | None = None) -> CleanSave | None:
        """That is still there, of no later step than `latest`."""
        for one in reversed(self.known):
            path = next((path for path in (Path(one.path), renamed(Path(one.path))) if path.exists()), None)
            if path is not None and (latest is None or one.step <= latest):
                return CleanSave(path=str(path), step=one.step)
        return None


def renamed(path: Path) -> Path:
    """What is written as `tmp-checkpoint-5`, `checkpoint-5.tmp` or `.saving/checkpoint-5` and then moved."""
    parts = [part.removeprefix("tmp-").removesuffix(".tmp") for part in path.parts if not part.startswith(".")]
    return Path(*parts)
