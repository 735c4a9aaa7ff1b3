"""`finitune train` learns what a plain script with TRL learns from the same data, and heals where it is asked to."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.train.test_run import BARE, LORA, SHORT
from tests.train.test_settings import config

for needed in ("torch", "trl", "peft"):
    pytest.importorskip(needed)

from finitune.recording import Recording  # noqa: E402
from finitune.train.run import train  # noqa: E402

PLAIN = Path(__file__).parents[2] / "benchmarks" / "plain_trl.py"
STEPS, WARM_UP, LAST, SEEDS = 40, 4, 8, (0, 1)


def by_trl(home: Path, world: Any, seed: int, rate: float, adapter: dict[str, Any]) -> float:
    """The mean of the last losses of the plain script, whose other settings are those of TRL."""
    settings = {
        "max_steps": STEPS, "logging_steps": 1, "per_device_train_batch_size": 4, "max_length": 64,
        "gradient_checkpointing": False, "learning_rate": rate, "warmup_steps": WARM_UP, "seed": seed,
    }  # fmt: skip
    command = [
        sys.executable, str(PLAIN), str(world["model_name_or_path"]), str(world["dataset_name"]),
        str(home / f"plain-{seed}"), json.dumps(settings), json.dumps(adapter),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("losses ")]
    return statistics.mean(json.loads(line.partition(" ")[2])[-LAST:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "rate", "adapter"),
    [("", 3e-3, {}), (LORA, 2e-3, {"r": 4, "lora_alpha": 32, "lora_dropout": 0.05})],
    ids=["full", "lora"],
)
def test_the_loss_is_that_of_a_plain_script(kind: str, rate: float, adapter: Any, tmp_path: Path, world: Any) -> None:
    """Same data, steps, rate, warm-up and targets; the rest is chosen by finitune, or left to TRL."""
    ours, theirs = [], []
    text = SHORT.replace("max_steps: 6", f"max_steps: {STEPS}").replace("save_steps: 2", f"save_steps: {STEPS}")
    text += f"completion_only_loss: false\nwarmup_steps: {WARM_UP}\n"
    for seed in SEEDS:
        (home := tmp_path / str(seed)).mkdir()
        file = config(home, text + (kind or f"learning_rate: {rate}\n") + f"seed: {seed}\n" + BARE, **world)
        assert train(file) == 0
        losses = Recording.load(home / "out" / "finitune").signals["loss"].values
        assert len(losses) == STEPS
        ours.append(float(losses[-LAST:].mean()))
        theirs.append(by_trl(home, world, seed, rate, adapter))
    assert ours == pytest.approx(theirs, rel=1e-6)


@pytest.mark.slow
def test_a_rate_that_ends_a_guarded_training_is_healed_where_the_file_says_so(
    tmp_path: Path, world: Any, capsys: Any
) -> None:
    """Plain SGD at a rate far beyond what it bears, unclipped."""
    text = SHORT.replace("max_steps: 6", "max_steps: 30").replace("save_steps: 2", "save_steps: 10")
    text += "optim: sgd\nlearning_rate: 100.0\nmax_grad_norm: 0.0\nlr_scheduler_type: constant\nwarmup_steps: 0\n"
    codes = {}
    for mode in ("guard", "heal"):
        (tmp_path / mode).mkdir()
        file = config(tmp_path / mode, f"{text}finitune: {{report: false, mode: {mode}}}\n", **world)
        codes[mode] = train(file)
    assert codes == {"guard": 3, "heal": 0}
    assert "healed (lr-too-high, proved): lower-learning-rate: the last " in capsys.readouterr().err
    assert (tmp_path / "heal" / "out" / "final" / "model.safetensors").exists()
