"""Chapters: how the files of `causes/`, `symptoms/` and `remedies/` are found and asked.

A chapter is one module, found by its file name; there is no other registration. A third party adds
chapters through the entry point group of the folder (`finitune.causes`, `finitune.symptoms`, `finitune.remedies`).
A function of a chapter declares what it reads by the names of its parameters.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, cast

_SECTION = re.compile(r"^## (.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One chapter: its slug (the file name with dashes) and its module."""

    name: str
    module: ModuleType

    @property
    def title(self) -> str:
        """The first line of the docstring."""
        return (self.module.__doc__ or "").strip().split("\n", 1)[0]

    @property
    def sections(self) -> dict[str, str]:
        """Heading -> text, from the `## ` headings of the docstring."""
        parts = _SECTION.split(inspect.cleandoc(self.module.__doc__ or ""))
        return {head: text.strip() for head, text in zip(parts[1::2], parts[2::2], strict=True)}

    def function(self, name: str) -> Callable[..., Any] | None:
        return getattr(self.module, name, None)

    def declared(self, name: str) -> list[Any]:
        """A list that the chapter declares, empty where it does not."""
        return list(getattr(self.module, name, ()))


@cache
def chapters(folder: str) -> Mapping[str, Chapter]:
    """All chapters of `finitune.<folder>`, ours first, by slug."""
    package = importlib.import_module(f"finitune.{folder}")
    found = {
        slug(info.name): importlib.import_module(f"{package.__name__}.{info.name}")
        for info in pkgutil.iter_modules(package.__path__)
        if not info.name.startswith("_")
    }
    for entry in entry_points(group=f"finitune.{folder}"):
        if slug(entry.name) in found:
            continue
        try:
            found[slug(entry.name)] = entry.load()
        except Exception as error:
            warnings.warn(f"chapter {entry.value} of {folder} was left out: {error!r}", RuntimeWarning, stacklevel=2)
    return {name: Chapter(name=name, module=module) for name, module in sorted(found.items())}


def slug(module_name: str) -> str:
    """`fp16_activation_overflow` -> `fp16-activation-overflow`."""
    return module_name.rsplit(".", 1)[-1].replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a chapter's function said. `missing` names required inputs that were not there; then nothing was asked."""

    results: list[Any]
    missing: tuple[str, ...] = ()
    broken: str | None = None


def ask(function: Callable[..., Any], inputs: Mapping[str, Any]) -> Answer:
    """Call `function` with the inputs it names.

    An input that is absent or None makes a required parameter missing; a parameter with a default is optional.
    An exception inside the function is returned as `broken`, because one bad chapter must not silence the others.
    """
    parameters = _parameters(function)
    given = {p.name: inputs[p.name] for p in parameters if inputs.get(p.name) is not None}
    missing = tuple(p.name for p in parameters if p.name not in given and p.default is p.empty)
    if missing:
        return Answer(results=[], missing=missing)
    try:
        result = function(**given)
        results: list[Any] = list(cast("Iterator[Any]", result)) if isinstance(result, Iterator) else [result]
    except Exception as error:
        return Answer(results=[], broken=f"{type(error).__name__}: {error}")
    return Answer(results=[one for one in results if one is not None])


def required(function: Callable[..., Any]) -> frozenset[str]:
    """The inputs without which it is not asked."""
    return frozenset(p.name for p in _parameters(function) if p.default is p.empty)


@cache
def _parameters(function: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    """Symptoms are asked at every step, so the signature is read once."""
    return tuple(inspect.signature(function).parameters.values())
