"""What Unsloth does to a process, each by itself and quickly; then its SFTTrainer under `finitune run`."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from finitune.diagnosis.recorded import diagnose  # noqa: E402
from finitune.gym.inject import inject  # noqa: E402
from finitune.injection import Injection  # noqa: E402
from finitune.integrations.transformers import TrainerCallback, _reporters_beside  # noqa: E402
from finitune.monitor.probes.modules import Modules  # noqa: E402
from finitune.monitor.watch import watch  # noqa: E402
from finitune.recording import Recording  # noqa: E402


@pytest.fixture
def frozen():
    """Unsloth freezes the heap for the whole of `Trainer.train()`."""

    def freeze() -> None:
        gc.freeze()

    yield freeze
    gc.unfreeze()


def test_a_model_in_a_frozen_heap_is_found_and_the_heap_stays_frozen(frozen):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    frozen()
    modules = Modules()
    modules.find(model.parameters())
    assert modules.roots() == [model]
    assert gc.get_freeze_count() > 0


def test_the_trackers_of_a_trainer_in_a_frozen_heap_are_found(frozen):
    class Tracker(transformers.integrations.TensorBoardCallback):
        def __init__(self) -> None:
            pass

    callback, tracker = TrainerCallback(), Tracker()
    kept = transformers.trainer_callback.CallbackHandler([callback, tracker], None, None, None, None)
    frozen()
    assert _reporters_beside(callback) == [tracker]
    assert kept.callbacks[-1] is tracker


class Reentrant(nn.Module):
    """Its block is run without gradients, and again in the backward, as Unsloth's checkpoints do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.block, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return self.head(checkpoint(self.block, self.first(x), use_reentrant=True))


def train(model: Any, run_dir: Path, loss: Any = None, fault: str = "nan:block:3") -> Recording:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with watch(model, optimizer, run_dir=run_dir) as monitor:
        planned = Injection.parse(fault)
        inject(monitor, planned, model, model.get_submodule(planned.module))
        for step in range(1, 6):
            out = model(torch.full((2, 4), 1.0 / step))
            (loss(out) if loss else out.square().mean()).backward()
            with torch.no_grad():
                model(torch.ones(1, 4))  # an evaluation
            optimizer.step()
            optimizer.zero_grad()
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    return Recording.load(run_dir)


def test_a_fault_injected_behind_a_reentrant_checkpoint_is_found(tmp_path):
    (incident,) = diagnose_of(train(Reentrant(), tmp_path / "run"))
    assert (incident.step, incident.symptom, incident.origin.module) == (3, "nonfinite-loss", "block")


@pytest.mark.timeout(120)
def test_a_compiled_loss_that_takes_no_graph_break_outlives_an_investigation(tmp_path):
    """Run under watch the compiler gives such a function up, and raised from step 4 on where it had."""
    compiled = torch.compile(lambda x: x.square().mean(), fullgraph=True, backend="eager")

    class WithLoss(Reentrant):
        def forward(self, x: Any) -> Any:
            return compiled(super().forward(x))

    recording = train(WithLoss(), tmp_path / "run", loss=lambda out: out * 1)
    assert recording.signals["loss"].steps.tolist() == [1, 2, 3, 4, 5]
    (incident,) = diagnose_of(recording)
    assert (incident.step, incident.origin.module, incident.reproducible) == (3, "block", True)
    assert recording.events("broken") == []


def diagnose_of(recording: Recording) -> Any:
    return diagnose(recording.directory).incidents


# Unsloth itself.

PROGRAM = Path(__file__).with_name("unsloth_program.py")
ROOT = Path(__file__).parents[2]


def python() -> str:
    """The Python that has Unsloth."""
    named = os.environ.get("FINITUNE_UNSLOTH_PYTHON") or ROOT / ".venv-unsloth" / "bin" / "python"
    if not Path(named).exists():
        pytest.skip("no environment with Unsloth: make .venv-unsloth/.made, or FINITUNE_UNSLOTH_PYTHON=PYTHON")
    return str(named)


def fine_tune(out: Path, *words: str, options: tuple[str, ...] = (), guarded: bool = True) -> tuple[Any, str]:
    """What the program wrote, and what was said."""
    command = [python(), str(PROGRAM), str(out), *(["--fast"] if torch.cuda.is_available() else []), *words]
    if guarded:
        command = [sys.executable, "-m", "finitune", "run", "--run-dir", str(out / "run"), *options, "--", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    environment.setdefault("PYTHONPATH", str(ROOT / "src"))
    ended = subprocess.run(command, env=environment, cwd=out.parent, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads((out / "result.json").read_text()), ended.stderr


MLP = "base_model.model.model.layers.0.mlp" if torch.cuda.is_available() else "model.layers.0.mlp"

slow = [pytest.mark.slow, pytest.mark.timeout(1800)]


class TestUnsloth:
    pytestmark = slow

    @pytest.mark.parametrize("accumulate", ["1", "2"])
    def test_a_healthy_run_is_the_same_and_the_recording_says_what_the_trainer_shows(self, tmp_path, accumulate):
        plain, _ = fine_tune(tmp_path / "plain", "--accumulate", accumulate, guarded=False)
        guarded, said = fine_tune(tmp_path / "guarded", "--accumulate", accumulate)
        assert "UnslothSFTTrainer" in guarded["trainer"]
        assert (guarded["callbacks"], plain["callbacks"]) == (1, 0)
        assert guarded["steps"] == plain["steps"]
        assert guarded["shown"] == plain["shown"]
        assert [line.split(";")[0] for line in said.splitlines() if "finitune:" in line] == [
            "finitune: 5 steps, all finite"
        ]
        signals = Recording.load(tmp_path / "guarded" / "run").signals
        for name in ("loss", "grad_norm"):
            shown = [row[name] for row in guarded["shown"]]
            assert signals[name].steps.tolist() == [1, 2, 3, 4, 5]
            assert signals[name].values.tolist() == pytest.approx(shown, rel=1e-6)

    def test_a_fault_of_step_3_is_found_there_with_its_origin_and_the_run_goes_on(self, tmp_path):
        result, _ = fine_tune(tmp_path / "out", options=("--inject", f"nan:{MLP}:3"))
        rows = result["steps"]
        assert [row["step"] for row in rows] == [1, 2, 3, 4, 5]
        assert all(row["sound"] for row in rows)
        assert rows[1]["weights"] == rows[2]["weights"] != rows[3]["weights"]
        assert rows[1]["state"] == rows[2]["state"]
        (incident,) = diagnose(tmp_path / "out" / "run").incidents
        assert (incident.step, incident.symptom, incident.reproducible) == (3, "nonfinite-loss", True)
        assert incident.origin is not None
        assert incident.origin.module == MLP

    @pytest.mark.parametrize("order", ["before", "after"])
    def test_the_callback_works_whichever_is_imported_first(self, tmp_path, order):
        result, _ = fine_tune(tmp_path / "out", "--callback", order, guarded=False)
        assert result["callbacks"] == 1
        steps = Recording.load(tmp_path / "out" / "run").signals["loss"].steps.tolist()
        assert steps == [1, 2, 3, 4, 5]

    def test_a_batch_without_labels_is_a_true_zero(self, tmp_path):
        """Unsloth's loss divides by the number of labels, at least 1: nothing is non-finite, so nothing is said."""
        result, said = fine_tune(tmp_path / "out", "--empty", "3")
        assert result["shown"][2]["loss"] == 0
        assert all(row["sound"] for row in result["steps"])
        assert [line.split(";")[0] for line in said.splitlines() if "finitune:" in line] == [
            "finitune: 5 steps, all finite"
        ]
