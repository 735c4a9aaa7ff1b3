"""Observations: what was seen of a run, under the names of one table (`observations.txt`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

ITSELF = "itself"
"""The heading of observations that are each about something of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One thing that was seen: its name in the table, what was read, and where that stands."""

    name: str
    text: str
    place: str = ""

    @property
    def words(self) -> str:
        return f"{self.text} ({self.place})" if self.place else self.text


Observed = Mapping[str, Observation]
"""Name -> what was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """A row of the table: what the observation is about, who can see it ("log", "settings", "written"), a sentence."""

    about: str
    seen_in: frozenset[str]
    sentence: str


@cache
def meanings() -> Mapping[str, Meaning]:
    """Every observation of the table, by name."""
    text = resources.files("finitune").joinpath("observations.txt").read_text(encoding="utf-8")
    out: dict[str, Meaning] = {}
    about = ITSELF
    for line in text.splitlines():
        if line.startswith("["):
            about = line.strip("[]")
        elif line and not line.startswith("#"):
            name, seen_in, sentence = line.split(": ", 2)
            own = name.replace("-", " ") if about == ITSELF else about
            out[name] = Meaning(about=own, seen_in=frozenset(seen_in.split(", ")), sentence=sentence)
    return out


def about(name: str) -> str:
    """What the observation is about; its own name where the table does not know it."""
    return meanings()[name].about if name in meanings() else name


def observed_as(name: str, text: str, place: str = "") -> dict[str, Observation]:
    """A mapping with this one observation."""
    return {name: Observation(name=name, text=text, place=place)}
