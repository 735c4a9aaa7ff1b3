"""The conformance table judges rightly, and what can be checked of it in seconds."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

pytest.importorskip("torch")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def conformance():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("conformance")


def test_every_stack_is_found_and_its_reasons_name_something(conformance):
    found = {f"{stack.name}:{variant}": stack for stack in conformance.stacks() for variant in stack.variants}
    assert {"plain:fp32", "hf_trainer:bf16", "lightning_trainer:32-true", "fsdp2:2 ranks"} <= set(found)
    assert all(set(stack.reasons) <= {*conformance.FAULTS, "origin"} for stack in found.values())
    assert all(set(stack.tracked) <= set(stack.variants) for stack in found.values())


@pytest.fixture(scope="module")
def plain(conformance):
    return next(conformance.stacks(["plain:fp32"]))


def run_of(conformance, stack, place, *, guarded):
    plan = [conformance.planned("fp32", "grad-nan", place / "grad-nan")]
    conformance.start(stack, place, "plan", plan, guarded=guarded)
    return conformance.read(place / "grad-nan", place / "plan.txt")


def problems_of(conformance, run):
    return conformance.properties.of_faulty("grad-nan", run, located=True)


@pytest.mark.slow
def test_under_guard_a_fault_is_found_discarded_and_does_not_escape(conformance, plain, tmp_path):
    run = run_of(conformance, plain, tmp_path, guarded=True)
    assert problems_of(conformance, run) == {"found": [], "unchanged": [], "goes on": [], "escapes": []}
    (origin,) = run.events("origin")
    assert origin["origin"]["module"] == "blocks.0.down_proj"


@pytest.mark.slow
def test_without_guard_the_same_run_fails_every_judgement(conformance, plain, tmp_path):
    run = run_of(conformance, plain, tmp_path, guarded=False)
    problems = problems_of(conformance, run)
    assert all(problems.values())
    assert problems["escapes"] == ["weights: rank 0", "optimizer state: rank 0", "checkpoint: training.pt"]


def test_what_is_not_run_is_said_and_what_escapes_is_counted(conformance, capsys):
    row = conformance.Row(wrong={"found": [], "escapes": ["grad-nan: log: shown"]}, faulty=9, saved_tensors=40)
    row.escapes["log"] = 1
    conformance.show({"plain:fp32": row}, {"unsloth_sft:fp32": "nowhere; `make it` makes it"})
    said = capsys.readouterr().out
    assert "unsloth_sft:fp32  not run: nowhere; `make it` makes it\n" in said
    assert "plain:fp32, escapes: grad-nan: log: shown\n" in said
    assert "escapes: 1 (weights 0, optimizer state 0, checkpoint 0, log 1) in 9 faulty runs; 40 tensors" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    "row", ["plain:clip", "accelerate_loop:fp32", "hf_trainer:bf16", "ddp:2 ranks", "fsdp2:2 ranks"]
)
def test_a_row_of_the_table(conformance, row, tmp_path):
    """One fault of the gradient and one of the loss; `make conformance` takes all eight and every row."""
    (stack,) = conformance.stacks([row])
    judged = conformance.judge(stack, tmp_path, ("grad-inf", "loss-nan"))[row]
    assert {name: problems for name, problems in judged.wrong.items() if problems} == {}
