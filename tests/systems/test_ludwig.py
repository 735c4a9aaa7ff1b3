"""Ludwig itself, in an environment of its own: `make .venv-ludwig/.made`, or name its Python in the environment."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from finitune.demo.runner import LAPTOP
from finitune.diagnosis.recorded import diagnose
from finitune.recording import Recording

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "ludwig"
PROGRAM = Path(__file__).with_name("ludwig_program.py")
PYTHON = Path(os.environ.get("FINITUNE_LUDWIG_PYTHON", ROOT / ".venv-ludwig" / "bin" / "python"))

QUICK = {"skip_all_evaluation": True}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON.exists(), reason=f"{PYTHON} is not there: make .venv-ludwig/.made"),
]


@pytest.fixture
def example(tmp_path):
    """A fresh copy: Ludwig keeps the data it has read beside the file, and a second run draws other random numbers."""
    return copy(tmp_path / "example")


def copy(directory):
    return Path(shutil.copytree(EXAMPLE, directory))


def run(directory, *command, check=False):
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(LAPTOP), str(ROOT / "src")]), "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1", "PATH": os.pathsep.join([str(PYTHON.parent), os.environ["PATH"]]),
    }  # fmt: skip
    done = subprocess.run(
        list(map(str, command)), cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert not check or done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done


def config(directory, name, **trainer):
    """The cured configuration, or the user's own, with other settings of the trainer."""
    settings = yaml.safe_load((directory / name).read_text())
    settings["trainer"].update(trainer)
    path = directory / "other.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def left(done):
    (line,) = [line for line in done.stdout.splitlines() if "LEFT {" in line]
    return json.loads(line.partition("LEFT ")[2])


def test_a_healthy_run_is_bit_identical_watched_or_not(tmp_path):
    program = [PYTHON, PROGRAM, "settings.yaml", "train.csv", "out"]
    commands = {
        "alone": program,
        "callback": [*program, "watched"],
        "command": [PYTHON, "-m", "finitune", "run", "--run-dir", "out/run", "--", *program],
    }
    found = {}
    for name, command in commands.items():
        directory = copy(tmp_path / name)
        few = config(directory, "cured/model.yaml", gradient_accumulation_steps=2, train_steps=12, **QUICK)
        few.rename(directory / "settings.yaml")
        found[name] = left(run(directory, *command, check=True))
    assert len(found["alone"]["rates"]) == 12
    assert found["alone"] == found["callback"] == found["command"]
    for name in ("callback", "command"):
        recording = Recording.load(tmp_path / name / "out" / "run")
        assert not recording.events("incident", "broken")
        assert len(recording.ranks[0].signals["loss"]) == 6


def test_the_callback_stops_the_run_at_the_fault(example):
    done = run(example, PYTHON, PROGRAM, example / "model.yaml", "train.csv", "stopped", "watched")
    assert done.returncode == 3, done.stderr[-2000:]
    (incident,) = diagnose(example / "stopped" / "run").incidents
    assert incident.step == 1
    assert incident.origin.phase == "backward"
    assert incident.origin.dtype == "float16"
    assert incident.origin.module.startswith("base_model.model.model.layers.")
    assert incident.origin.padding is True
    assert incident.origin.tokens == [0]
    assert incident.origin.rows
    first = incident.causes[0]
    assert (first.cause, first.proved) == ("unmasked-padding", True)
    assert {"bnb_4bit_compute_dtype"} <= {key for cure in first.remedies for key in cure.patch or {}}
    arms = {e["arm"]: e["result"] for e in Recording.load(example / "stopped" / "run").events("arm")}
    assert arms == {
        "row-by-row": "finite", "pad-other-side": "finite", "reverse-rows": "non-finite",
        "loss-scale-1": "non-finite", "again": "non-finite",  # which decide against fp16-backward-overflow
    }  # fmt: skip


@pytest.mark.parametrize("half", ["pad_token", "compute_dtype"])
def test_either_half_of_the_cure_is_enough_for_finite_numbers(example, half):
    name = "cured/model.yaml" if half == "compute_dtype" else "model.yaml"
    if half == "pad_token":
        shutil.copy(EXAMPLE / "cured" / "model" / "tokenizer_config.json", example / "model")
    settings = config(example, name, train_steps=10, **QUICK)
    run(example, PYTHON, PROGRAM, settings, "train.csv", "out", "watched", check=True)
    assert diagnose(example / "out" / "run").verdict == "healthy"
