"""What the variables of a frame were when a statement of it ran, where later ones have overwritten them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finitune.monitor.statements.plain_functions import Evaluation
from finitune.monitor.user_code.arithmetic import assign
from finitune.monitor.user_code.source_tree import Statement
from finitune.monitor.user_code.torch_arithmetic import NotPlain


def overwritten(statements: list[Statement], at: int) -> frozenset[str]:
    """The variables that the statement reads and whose values are no longer those that it saw."""
    one = statements[at]
    return one.reads & (one.writes | written_after(statements, at))


def seen_by(statements: list[Statement], at: int, name: str, values: Mapping[str, Any]) -> Any:
    """The value of a variable that was overwritten since, from the statement that wrote it before."""
    before = [n for n in range(at) if name in statements[n].writes]
    made = statements[before[-1]] if before else None
    if made is None or made.target is None:
        raise NotPlain(name)
    lost = {each: seen_by(statements, before[-1], each, values) for each in overwritten(statements, before[-1])}
    written: dict[str, Any] = {}
    assign(made.target, Evaluation(lambda: False).value(made.expression, {**values, **lost}), written)
    return written[name]


def written_after(statements: list[Statement], at: int) -> set[str]:
    """The variables whose values are no longer those that the statement saw or wrote."""
    return {name for later in statements[at + 1 :] for name in later.writes}
