"""AdaLoRA of PEFT, in processes of its own."""

from __future__ import annotations

import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")
if find_spec("peft") is None:
    pytest.skip("PEFT is not installed", allow_module_level=True)

from finitune.recording import Recording

PROGRAM = Path(__file__).with_name("adalora_program.py")
NO_BATCH = "99"


def lines(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def watched(run_dir, *args):
    return lines("-m", "finitune", "run", "--run-dir", str(run_dir), "--", sys.executable, str(PROGRAM), *args)


@pytest.mark.slow
def test_healthy_ranks_are_those_of_the_run_alone(tmp_path):
    assert watched(tmp_path / "run", "plain", NO_BATCH) == lines(str(PROGRAM), "plain", NO_BATCH)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "batch"), [("fused", 4), ("plain", 0)])
def test_averages_take_nothing_from_a_discarded_step(tmp_path, kind, batch):
    *rows, weights = watched(tmp_path / "run", kind, str(batch))
    losses, averages = zip(*[map(float, row.split()[1:]) for row in rows], strict=True)
    assert [step for step, loss in enumerate(losses) if not math.isfinite(loss)] == [batch]
    assert all(map(math.isfinite, [*averages, float(weights)]))
    assert averages[batch] == (averages[batch - 1] if batch else 0)
    assert averages[batch + 1] > averages[batch]
    (incident,) = Recording.load(tmp_path / "run").events("incident")
    assert (incident["step"], incident["action"]) == (batch + 1, "skipped-step")
