"""Findings of a report -> where each is held, and whether that is there.

A place is `file:test` below `tests/`, the name of a program of `tests/programs`, which is judged by its truth, or a
sentence that says why there is no test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


def is_held(place: str) -> bool:
    """Whether the test or the program is there; a sentence ends in a full stop."""
    if place.endswith("."):
        return True
    file, _, name = place.partition(":")
    return name in _names_in(file) if name else (TESTS / "programs" / f"{file}.py").exists()


def numbers_of(findings: Iterable[str]) -> set[int]:
    """The numbers with which findings begin; a letter after one parts what it names."""
    return {int("".join(c for c in one.split()[0] if c.isdigit())) for one in findings if one[0].isdigit()}


@cache
def _names_in(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
