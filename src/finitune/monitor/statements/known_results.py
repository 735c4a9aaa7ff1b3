"""Variables of a function that has ended which are still there, because it returned them: what it drew stays known."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from finitune.monitor.statements.plain_statements import is_bad
from finitune.monitor.user_code.arithmetic import MISSING
from finitune.monitor.user_code.source_tree import Statement, nodes_in, statements_in


def result_of(one: Statement, values: Mapping[str, Any], overwritten: Iterable[str]) -> Any:
    """What the statement was given by the call that it makes, as its variables hold it; MISSING for a part that they do
    not hold, or no longer.
    """
    held = {name: value for name, value in values.items() if name not in overwritten}
    match one.target:
        case ast.Name(id=name):
            return held.get(name, MISSING)
        case ast.Tuple(elts=parts):
            return tuple(held.get(part.id, MISSING) if isinstance(part, ast.Name) else MISSING for part in parts)
        case _:
            return MISSING


def variables_returned(scope: ast.AST, result: Any) -> dict[str, Any]:
    """The variables of a function that are parts of its result and finite, where it has one `return` and writes each of
    them once.
    """
    returns = [node.value for node in nodes_in(scope) if isinstance(node, ast.Return)]
    match returns, result:
        case [ast.Tuple(elts=parts)], tuple() if len(parts) == len(result):
            pairs = list(zip(parts, result, strict=True))
        case [ast.Dict(keys=keys, values=parts)], dict():
            there = zip(keys, parts, strict=True)
            pairs = [(part, result.get(key.value, MISSING)) for key, part in there if isinstance(key, ast.Constant)]
        case _:
            return {}
    written = Counter(name for one in statements_in(scope) for name in one.writes)
    found = {part.id: value for part, value in pairs if isinstance(part, ast.Name) and written[part.id] == 1}
    return {name: value for name, value in found.items() if value is not MISSING and not is_bad(value)}
