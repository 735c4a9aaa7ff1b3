"""What a chapter of `symptoms/` may declare: `see(signals by name...) -> Sighting | None`.

`see` judges the newest step of the series it is given. It keeps no state: the window is the state,
so the answer is the same live, on a recording and on a parsed log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from finitune.chapter import Chapter, ask, chapters
from finitune.series import Signals


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A symptom seen at `step`, in one line with its numbers."""

    step: int
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])
    symptom: str = ""


def symptoms() -> Mapping[str, Chapter]:
    """Every symptom, by slug."""
    return chapters("symptoms")


def sightings(signals: Signals) -> list[Sighting]:
    """The symptoms present at the newest step of `signals`."""
    inputs = {name: series for name, series in signals.items() if series}
    out: list[Sighting] = []
    for name, chapter in symptoms().items():
        see = chapter.function("see")
        for sighting in ask(see, inputs).results if see else []:
            out.append(Sighting(step=sighting.step, text=sighting.text, numbers=sighting.numbers, symptom=name))
    return out
