"""What a file of `gym/faults/` declares, and how the faults are found.

cause = "all-labels-ignored"        the slug of the cause that diagnosis should name
step = 4                            the first optimizer step with a non-finite loss or gradient, from 1
origins = {"llama": Origin(...)}    model family -> the first bad operator; None where the step does not repeat
build(family, directory) -> Run     a run that fails at `step`; files go to `directory`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from finitune.chapter import chapters
from finitune.finding import Origin
from finitune.gym.loop import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One honest way to fail: nothing non-finite is put in, it comes about."""

    name: str
    cause: str
    step: int
    origins: Mapping[str, Origin | None]
    build: Callable[[str, Path], Run]

    @property
    def families(self) -> list[str]:
        return list(self.origins)


def faults() -> Mapping[str, Fault]:
    """Every fault of the gym, by slug of its file name."""
    return {
        name: Fault(
            name=name,
            cause=chapter.module.cause,
            step=chapter.module.step,
            origins=chapter.module.origins,
            build=chapter.module.build,
        )
        for name, chapter in chapters("gym.faults").items()
    }
