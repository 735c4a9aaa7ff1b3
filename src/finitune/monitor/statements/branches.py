"""Which branch of an `if` ran, where its condition can be computed again from what the variables still hold."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from finitune.monitor.statements.plain_functions import NOT_COMPUTED, Evaluation
from finitune.monitor.user_code.source_tree import Statement, holds_line, loops_at, names_in, nodes_in


def without_untaken(
    scope: ast.AST, statements: Sequence[Statement], values: Mapping[str, Any], now: int
) -> list[Statement]:
    """The statements without those of branches that did not run in this pass, up to the line `now`."""
    untaken = list(_untaken(scope, statements, values, now))
    return [one for one in statements if not any(holds_line(each, one.line) for each in untaken)]


def _untaken(
    scope: ast.AST, statements: Sequence[Statement], values: Mapping[str, Any], now: int
) -> Iterator[ast.stmt]:
    for node in nodes_in(scope):
        if not isinstance(node, ast.If) or node.lineno > now or holds_line(node, now):
            continue
        if any(not holds_line(loop, now) for loop in loops_at(scope, node.lineno)):
            continue  # in an earlier pass of a loop that has ended the other one may have run
        written = {name for one in statements if node.lineno < one.line <= now for name in one.writes}
        # What an attribute held then is not known: a counter may have gone on.
        if written & names_in([node.test]) or any(isinstance(each, ast.Attribute) for each in ast.walk(node.test)):
            continue
        try:
            with torch.no_grad():
                holds = bool(Evaluation(lambda: False).value(node.test, values))
        except NOT_COMPUTED:
            continue
        yield from node.orelse if holds else node.body
