"""Keras with torch as its backend, in processes of its own: what it imports is chosen by the environment."""

from __future__ import annotations

import math
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")
if find_spec("keras") is None:
    pytest.skip("Keras is not installed", allow_module_level=True)

from finitune.recording import Recording

PROGRAM = Path(__file__).with_name("keras_program.py")
pytestmark = pytest.mark.slow


def run(*command):
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done


def watched(run_dir, *args):
    return run("-m", "finitune", "run", "--run-dir", str(run_dir), "--", sys.executable, str(PROGRAM), *args)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_healthy_model_trains_as_without(tmp_path, optimizer):
    alone, under_guard = run(str(PROGRAM), optimizer, "0.5"), watched(tmp_path / "run", optimizer, "0.5")
    assert under_guard.stdout == alone.stdout
    assert [*Recording.load(tmp_path / "run").events("incident")] == []


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_a_bad_update_is_discarded(tmp_path, optimizer, bad):
    *_, weights = watched(tmp_path / "run", optimizer, bad).stdout.split()
    assert math.isfinite(float(weights))
    incidents = Recording.load(tmp_path / "run").events("incident")
    assert [(one["step"], one["action"]) for one in incidents] == [(5, "skipped-step"), (13, "skipped-step")]
