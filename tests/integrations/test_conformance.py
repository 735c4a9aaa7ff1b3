"""The conformance table judges rightly, and what can be checked of it in seconds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def conformance():
    spec = importlib.util.spec_from_file_location("conformance", BENCHMARKS / "conformance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["conformance"] = module
    spec.loader.exec_module(module)
    return module


def test_every_stack_is_found_and_its_reasons_name_something(conformance):
    found = {stack.row: stack for stack in conformance.stacks([])}
    assert {"plain:fp32", "hf_trainer:bf16", "lightning_trainer:32-true", "fsdp2:2 ranks"} <= set(found)
    known = {*conformance.PROPERTIES, *conformance.FAULTS, "origin"}
    assert all(set(stack.reasons) <= known for stack in found.values())
    assert sum(stack.line for stack in found.values()) >= 6, "the one-line door, once per framework"


@pytest.fixture(scope="module")
def plain(conformance):
    return next(iter(conformance.stacks(["plain:fp32"])))


def run_of(conformance, stack, place, *, guarded):
    plan = [conformance.planned("grad-nan", place / "grad-nan")]
    conformance.start(stack, place, "plan", plan, guarded=guarded)
    return conformance.read(place / "grad-nan", place / "plan.txt")


def test_under_guard_a_fault_is_found_discarded_and_does_not_escape(conformance, plain, tmp_path):
    run = run_of(conformance, plain, tmp_path, guarded=True)
    judged = (conformance._found, conformance._unchanged, conformance._goes_on, conformance._escapes)
    assert [judge("grad-nan", run) for judge in judged] == [[], [], [], []]
    assert run.origins()[0]["origin"]["module"] == "blocks.0.down_proj"


def test_without_guard_the_same_run_fails_every_judgement(conformance, plain, tmp_path):
    run = run_of(conformance, plain, tmp_path, guarded=False)
    judged = (conformance._found, conformance._unchanged, conformance._goes_on, conformance._escapes)
    assert all(judge("grad-nan", run) for judge in judged)
    assert conformance._escapes("grad-nan", run) == [
        "rank 0: weights not finite", "rank 0: state not finite", "rank 0: checkpoint not finite: training.pt"
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", ["plain:clip", "accelerate_loop:fp32", "hf_trainer:bf16", "ddp:2 ranks", "fsdp2:2 ranks"]
)
def test_a_row_of_the_table(conformance, row, tmp_path):
    """One fault of the gradient and one of the loss; `make conformance` takes all eight and every row."""
    cells, _ = conformance.judge(next(iter(conformance.stacks([row]))), tmp_path, ("grad+inf", "loss-nan"))
    assert {name: cell.why for name, cell in cells.items() if cell.verdict == "no"} == {}
