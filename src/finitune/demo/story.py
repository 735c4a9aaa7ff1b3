"""A story: a directory as a user of some system has it, with the bug in it, and `story.yaml`, which says what to see.

`story.yaml` holds `title`, `needs` (what must be installed), `install` (how), and `steps`. A step has a `name`, what it
`says`, what to `run` (one command or several, by bash, in a copy of the directory) and what to `expect`, every key
optional; it passes when all of them hold:

    exit: 0          of every command; `not 0` or another number: of the last
    shows, lacks     regexes that some line of the output matches, or none
    finds            causes that `finitune check` finds as error or warning; [] when it must find none
    cause, proved    the first cause of the first incident that `finitune diagnose` names
    learns           a recording whose losses fall
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

import finitune
from finitune.finding import UnreadableInput
from finitune.sources.text import config_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """What a step must show; None is not asked. `exit` is a number or "not 0"."""

    exit: int | str | None = None
    shows: Sequence[str] = ()
    lacks: Sequence[str] = ()
    finds: Sequence[str] | None = None
    cause: str | None = None
    proved: bool | None = None
    learns: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One step of a story as it is written."""

    name: str
    says: str
    run: Sequence[str]
    expect: Expect


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A story as it is written, and the directory that it is about."""

    directory: Path
    title: str
    needs: Sequence[str]
    install: str
    steps: Sequence[Scene]

    @property
    def name(self) -> str:
        return self.directory.name


def stories() -> dict[str, Path]:
    """Every example with a story, by name: those of an installed finitune, or those of its checkout."""
    package = Path(finitune.__file__).parent
    homes = [package / "examples"] + ([package.parents[1] / "examples"] if package.parent.name == "src" else [])
    found = [path.parent for home in homes for path in sorted(home.glob("*/story.yaml"))]
    return {path.name: path for path in found}


def read(directory: Path) -> Story:
    """The story of an example.

    Raises UnreadableInput for a key that no story has, and for a value of the wrong kind.
    """
    file = directory / "story.yaml"
    story = config_of(file)
    _only(story, ("title", "needs", "install", "steps"), f"{file}")
    steps = _value(story, "steps", list, str(file))
    if not steps:
        raise UnreadableInput(f"{file}: steps: expected at least one step")
    return Story(
        directory=directory,
        title=_value(story, "title", str, str(file)),
        needs=_words(story, "needs", str(file)),
        install=_value(story, "install", str, str(file), ""),
        steps=[_scene(step, f"{file}: steps[{number}]") for number, step in enumerate(steps)],
    )


def missing(story: Story) -> list[str]:
    """The needs that this environment does not meet: modules, with or without a range of versions."""
    return [need for need in story.needs if not _there(need, story.directory / "story.yaml")]


def _there(need: str, file: Path) -> bool:
    try:
        wanted = Requirement(need)
    except InvalidRequirement:
        raise UnreadableInput(
            f"{file}: needs: '{need}' (expected a name such as deepspeed, or deepspeed<0.19)"
        ) from None
    if importlib.util.find_spec(wanted.name.replace("-", "_")) is None:
        return False
    return not wanted.specifier or wanted.specifier.contains(importlib.metadata.version(wanted.name), prereleases=True)


def _scene(step: Any, place: str) -> Scene:
    if not isinstance(step, Mapping):
        raise UnreadableInput(f"{place}: expected name, says, run and expect")
    _only(step, ("name", "says", "run", "expect"), place)
    return Scene(
        name=_value(step, "name", str, place),
        says=_value(step, "says", str, place, ""),
        run=[step["run"]] if isinstance(step.get("run"), str) else _words(step, "run", place, needed=True),
        expect=_expect(step.get("expect") or {}, f"{place}: expect"),
    )


def _expect(expect: Any, place: str) -> Expect:
    if not isinstance(expect, Mapping):
        raise UnreadableInput(f"{place}: expected keys such as exit and shows")
    _only(expect, Expect.__dataclass_fields__, place)
    code = expect.get("exit")
    if code is not None and code != "not 0" and type(code) is not int:
        raise UnreadableInput(f"{place}: exit: {code!r} (expected a number or 'not 0')")
    for key in ("shows", "lacks"):
        for pattern in _words(expect, key, place):
            try:
                re.compile(pattern)
            except re.error as error:
                raise UnreadableInput(f"{place}: {key}: '{pattern}' is no regular expression ({error})") from None
    return Expect(
        exit=code,
        shows=_words(expect, "shows", place),
        lacks=_words(expect, "lacks", place),
        finds=_words(expect, "finds", place) if "finds" in expect else None,
        cause=_value(expect, "cause", str, place, None),
        proved=_value(expect, "proved", bool, place, None),
        learns=_value(expect, "learns", str, place, None),
    )


def _only(found: Mapping[str, Any], known: Sequence[str] | Mapping[str, Any], place: str) -> None:
    unknown = [str(key) for key in found if key not in known]
    if unknown:
        raise UnreadableInput(f"{place}: unknown key {', '.join(unknown)} (expected {', '.join(known)})")


REQUIRED: Any = object()
KINDS = {str: "text", bool: "true or false", list: "a list"}


def _value(found: Mapping[str, Any], key: str, kind: type, place: str, default: Any = REQUIRED) -> Any:
    value = found.get(key, default)
    if value is REQUIRED:
        raise UnreadableInput(f"{place}: {key} is missing (expected {KINDS[kind]})")
    if value is not default and not isinstance(value, kind):
        raise UnreadableInput(f"{place}: {key}: {value!r} (expected {KINDS[kind]})")
    return value


def _words(found: Mapping[str, Any], key: str, place: str, *, needed: bool = False) -> list[str]:
    values = _value(found, key, list, place, REQUIRED if needed else [])
    wrong = [value for value in values if not isinstance(value, str)]
    if wrong or (needed and not values):
        raise UnreadableInput(f"{place}: {key}: {wrong[0] if wrong else values!r} (expected a list of text)")
    return values
