"""What reading a Python file can tell of an expression: values, and `Computed` for what only running would tell."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from finitune.facts import Hardware
from finitune.sources.configs.program.names import Names, Scope, Site

MAX_DEPTH = 60
MAX_STEPS = 5_000
"""Expressions that are looked into for one value: names that double each other would never end."""


@dataclass(frozen=True, slots=True)
class Computed:
    """What only running would tell, and the line that computes it; `card` where it is what the card can do."""

    line: int
    card: bool = False


@dataclass(frozen=True, slots=True)
class Symbol:
    """Something imported, by its dotted name."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """An object whose attributes are known; `made` is the class or function that made it."""

    attributes: Mapping[str, Any]
    made: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Defined:
    """A class or function of the file itself."""

    scope: Scope


@dataclass(slots=True, eq=False)
class Reader:
    """Reads values of one file; `card` is that of the run, None where it is not known."""

    names: Names
    kinds: Mapping[type[ast.AST], Callable[[Reader, Any, Site], Any]]
    """How each kind of expression is read."""
    card: Hardware | None = None
    typed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The flags of the command line that starts the program; without it defaults count."""
    making: set[int] = field(default_factory=set[int])
    """Classes and functions that are being read: one that needs itself has no value."""
    answers: dict[int, Any] = field(default_factory=dict[int, Any])
    """What the test of each branch gave, by the identity of its node."""
    _steps: int = 0
    _depth: int = 0

    def begin(self) -> None:
        """Each value of interest may take as long as any other."""
        self._steps, self._depth = 0, 0
        self.making.clear()

    def value(self, node: ast.AST | None, site: Site) -> Any:
        """The value of an expression that stands there."""
        line = getattr(node, "lineno", site.at[0])
        self._steps += 1
        read = self.kinds.get(type(node)) if node is not None else None
        if read is None or self._depth > MAX_DEPTH or self._steps > MAX_STEPS:
            return Computed(line)
        self._depth += 1
        try:
            return read(self, node, site)
        except (ArithmeticError, ValueError, TypeError, KeyError, IndexError, AttributeError):
            return Computed(line)  # it would raise there as well, or is no business of numbers
        finally:
            self._depth -= 1


def known(value: Any) -> bool:
    """Whether it is known by reading, to its last element."""
    if isinstance(value, Mapping):
        return all(map(known, cast("Mapping[Any, Any]", value).values()))
    if isinstance(value, list):
        return all(map(known, cast(list[Any], value)))
    return not isinstance(value, Computed | Record | Defined)


def plain(value: Any) -> Any:
    """As a file of settings would have it: what was imported by its name, `torch.float16`."""
    if isinstance(value, Symbol):
        return value.name
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in cast("Mapping[Any, Any]", value).items()}
    return [plain(v) for v in cast(list[Any], value)] if isinstance(value, list) else value
