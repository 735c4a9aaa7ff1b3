"""`finitune run` in front of the launchers that people use: the process that trains is watched, whoever starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from finitune.diagnosis.recorded import diagnose

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

TRAIN = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(1, 6):
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    if step == 3:
        y.fill_(-100)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CHILD = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, 'train.py']).returncode)"
FORK = "import os, runpy; child = os.fork(); os.waitpid(child, 0) if child else runpy.run_path('train.py')"
LAUNCHERS = {
    "python": ("-c", "import runpy; runpy.run_path('train.py')"),
    "torchrun": ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "train.py"),
    "accelerate": ("-m", "accelerate.commands.launch", "--cpu", "--num_processes=1", "train.py"),
    "deepspeed": ("-m", "deepspeed.launcher.runner", "--num_gpus=1", "train.py"),
    "subprocess": ("-c", CHILD),
    "fork": ("-c", FORK),
}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_process_that_trains_is_watched(launcher: str, tmp_path: Path) -> None:
    if launcher in ("accelerate", "deepspeed"):
        pytest.importorskip(launcher)
    (tmp_path / "train.py").write_text(TRAIN)
    command = [sys.executable, "-m", "finitune", "run", "--run-dir", "run", "--", sys.executable, *LAUNCHERS[launcher]]
    # DeepSpeed's launcher counts no device where it finds none, and calls the `python` of the path.
    more = {"DS_ACCELERATOR": "cpu", "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))}
    ended = subprocess.run(command, cwd=tmp_path, env={**os.environ, **more}, capture_output=True, timeout=800)
    assert ended.returncode == 0, ended.stderr.decode()
    incidents = diagnose(tmp_path / "run").incidents
    assert [(one.step, one.symptom) for one in incidents] == [(3, "nonfinite-loss")]
    assert incidents[0].causes[0].cause == "all-labels-ignored"
