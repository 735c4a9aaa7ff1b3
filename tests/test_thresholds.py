"""No threshold of the product stands beside a parameter of the benchmark's own faults.

Only of faults: a healthy program is an incident or none by its numbers, whatever its settings are (tests/diagnosis).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from finitune import rates

ROOT = Path(__file__).parents[1]
LOG_FAULTS = ROOT / "benchmarks" / "log_runs" / "_faults.py"
GYM = ROOT / "src" / "finitune" / "gym" / "faults"
BESIDE = 2.0

ADAM = {
    *(value for risk in (rates.FULL, rates.LORA, rates.ANY) for value in (risk.warning, risk.error)),
    rates.USUAL, rates.TINY,
}  # fmt: skip
"""Without `unwarmed`, from which on a warm-up is wanted: recipes have that very rate, and a run in which another fault
is planted can only lose by the warning."""


def numbers(tree: ast.AST) -> Iterator[float]:
    yield from (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and type(node.value) is float)


def definitions(path: Path) -> dict[str, ast.AST]:
    """The functions and the assigned names of a module, which is not imported: it needs torch."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    named = {node.targets[0].id: node.value for node in body
             if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}  # fmt: skip
    return {**functions, **named}


def beside(value: float, thresholds: set[float]) -> list[float]:
    return [one for one in sorted(thresholds) if one / BESIDE < value < BESIDE * one]


def test_a_rate_just_beyond_a_threshold_is_seen():
    assert beside(4e-3, ADAM) == [5e-3]
    assert not beside(0.3, ADAM)


@pytest.mark.parametrize("name", ["usual", "high_rate"])
def test_rates_of_the_faults_in_logs(name):
    """Those of recipes, at which another fault is planted, and those that are the fault: of Adam, then of SGD."""
    found = sorted(numbers(definitions(LOG_FAULTS)[name]))
    adam = [value for value in found if 0 < value < rates.SGD_LENGTH and value != 0.5]  # half of the runs use Adam
    assert adam
    assert not [(value, near) for value in adam if (near := beside(value, ADAM))]
    sgd = [value for value in found if value >= rates.SGD_LENGTH]
    assert not [value for value in sgd if beside(value, {rates.SGD_LENGTH})]


def test_rates_of_the_fault_in_the_gym():
    found = list(numbers(definitions(GYM / "lr_too_high.py")["RATES"]))
    assert found
    assert not [value for value in found if value < BESIDE * rates.SGD_LENGTH]
