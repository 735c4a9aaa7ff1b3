"""Rows of the tables of causes: what a chapter is told, and what it has to say of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from finitune.chapter import Answer, causes
from finitune.finding import Evidence, Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Fires:
    """Facts in which one thing is found, and what has to be true of the finding."""

    facts: Mapping[str, Any]
    severity: str
    at: str
    """ "file: key", as `Where.said` reads it."""
    where: Mapping[str, Any]
    said: Sequence[str]
    evidence: Mapping[str, Any]
    patch: Mapping[str, Any]
    todo: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """Facts in which nothing is found. `cleared`: and nothing else had to be known for that."""

    facts: Mapping[str, Any]
    why: str
    cleared: bool
    instead: str
    """The cause that it is."""


Foreseen = dict[str, tuple[Sequence[Fires], Sequence[Quiet]]]


def fires(
    severity: str, *said: str, at: str = "", where: Mapping[str, Any] | None = None,
    evidence: Mapping[str, Any] | None = None, patch: Mapping[str, Any] | None = None, todo: str = "", **facts: Any,
) -> Fires:  # fmt: skip
    """One finding of this severity; `said` are parts of its message, `todo` is the beginning of its remedy's text."""
    return Fires(
        facts=facts, severity=severity, at=at, said=said, todo=todo,
        where=where or {}, evidence=evidence or {}, patch=patch or {},
    )  # fmt: skip


def told(**facts: Any) -> dict[str, Any]:
    return facts


def quiet(why: str = "", *, instead: str = "", **facts: Any) -> Quiet:
    return Quiet(facts=facts, why=why, cleared=False, instead=instead)


def resembles(why: str, *, instead: str = "", **facts: Any) -> Quiet:
    """Something that the cause may be taken for, and in a sentence why it is not the cause."""
    return Quiet(facts=facts, why=why, cleared=True, instead=instead)


def asked(cause: str, **facts: Any) -> Answer:
    """What `preflight` is told by the chapter, which has to have been asked and to be whole."""
    answer = causes()[cause].ask("foresee", facts)
    assert not answer.missing
    assert not answer.broken
    return answer


def found(cause: str, **facts: Any) -> list[Finding]:
    return asked(cause, **facts).results


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """Inputs after a run, and between which bounds the sum of the bits lies; `silent`: nothing is said at all."""

    inputs: Mapping[str, Any]
    why: str = ""
    low: float = -math.inf
    high: float = math.inf
    silent: bool = False
    less: bool = False
    """Less than the first row in favour of the cause."""


def over(bits: float, why: str = "", **inputs: Any) -> Weighed:
    return Weighed(inputs=inputs, why=why, low=bits)


def under(bits: float, why: str = "", **inputs: Any) -> Weighed:
    return Weighed(inputs=inputs, why=why, high=bits)


def between(low: float, high: float, why: str = "", **inputs: Any) -> Weighed:
    return Weighed(inputs=inputs, why=why, low=low, high=high)


def exactly(bits: float, why: str = "", **inputs: Any) -> Weighed:
    return Weighed(inputs=inputs, why=why, low=bits - 0.01, high=bits + 0.01)


def less(why: str, **inputs: Any) -> Weighed:
    return Weighed(inputs=inputs, why=why, less=True)


def nothing(why: str, **inputs: Any) -> Weighed:
    return Weighed(inputs=inputs, why=why, silent=True)


Table = dict[str, tuple[Sequence[Weighed], Sequence[Weighed]]]


def terms(cause: str, **inputs: Any) -> list[Evidence]:
    """What the chapter says after a run; each term has a text and is finite."""
    answer = causes()[cause].ask("weigh", inputs)
    assert not answer.missing
    assert not answer.broken
    assert all(term.text and math.isfinite(term.bits) for term in answer.results)
    return answer.results


def bits(cause: str, **inputs: Any) -> float:
    return sum(term.bits for term in terms(cause, **inputs))


def numbered(cases: Mapping[str, tuple[Sequence[Any], Sequence[Any]]], side: int) -> list[Any]:
    """Cause and row of each row in favour (0) or of what it may be taken for (1), named by the cause and a number."""
    return [
        pytest.param(cause, row, id=f"{cause}-{number}")
        for cause, rows in cases.items()
        for number, row in enumerate(rows[side], 1)
    ]
