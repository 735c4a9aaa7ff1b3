"""A step that cannot be run again is watched in a second run: `--watch-step N`, or `--rerun`, which needs no number."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from finitune.diagnosis.recorded import diagnose

FINITUNE = Path(sysconfig.get_path("scripts")) / "finitune"
TRAIN = """
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
field = nn.Linear(2, 2)
optimizer = torch.optim.Adam(field.parameters(), lr=1e-2)
for step in range(1, 8):
    y = torch.randn(6, 2)
    end = y / 2
    if step == 5:
        y[2] = 60.0
    for _ in range(20):
        y = y + 0.1 * (field(y) - y**3)
    loss = (y - end).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), flush=True)
"""


def run(tmp_path, *options, program=TRAIN):
    (tmp_path / "train.py").write_text(program)
    words = [str(FINITUNE), "run", "--run-dir", "run", *options, "--", sys.executable, "train.py"]
    return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_without_it_the_statement_is_named_and_how_to_find_the_operator(tmp_path):
    done = run(tmp_path)
    assert done.returncode == 0
    assert "finitune run --watch-step 5 -- COMMAND" in done.stderr
    (incident,) = diagnose(tmp_path / "run").incidents
    assert incident.origin.is_statement


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code"), [(("--watch-step", "5"), 3), (("--rerun",), 0)], ids=["watch-step", "rerun"]
)
def test_the_operator_is_found(tmp_path, options, code):
    done = run(tmp_path, *options)
    assert done.returncode == code, done.stderr
    (incident,) = diagnose(tmp_path / "run").incidents
    assert (incident.step, incident.origin.op, incident.origin.phase) == (5, "aten.pow", "forward")
    assert incident.origin.line.endswith("y = y + 0.1 * (field(y) - y**3)")


@pytest.mark.slow
def test_a_bad_input_that_the_loop_has_computed_is_followed_to_its_operator(tmp_path):
    """Its own variable was overwritten, so that the statement alone does not tell which of its operators it was."""
    standardised = TRAIN.replace("y[2] = 60.0", "y = torch.ones(6, 2)\n    y = (y - y.mean()) / y.std()")
    run(tmp_path, program=standardised)
    (incident,) = diagnose(tmp_path / "run").incidents
    assert (incident.origin.op, incident.origin.phase) == ("input", "input")
    run(tmp_path, "--watch-step", "5", "--run-dir", "again", program=standardised)
    (incident,) = diagnose(tmp_path / "again").incidents
    assert incident.origin.op == "aten.div"
    assert incident.origin.line.endswith("y = (y - y.mean()) / y.std()")


@pytest.mark.slow
def test_a_run_in_which_all_is_located_is_not_started_again(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN.replace("y[2] = 60.0", "end[2] = float('nan')"))
    words = [str(FINITUNE), "run", "--run-dir", "run", "--rerun", "--", sys.executable, "train.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "runs again" not in done.stderr
    assert not (tmp_path / "run" / "rerun").exists()
