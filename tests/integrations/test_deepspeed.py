"""DeepSpeed engines under `finitune run`: every ZeRO stage, every dtype, the fault on the last of one or two ranks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from finitune.diagnosis.recorded import diagnose

pytest.importorskip("deepspeed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PROGRAM = Path(__file__).with_name("deepspeed_program.py")
SETTINGS = [(stage, dtype, 1) for stage in (0, 1, 2, 3) for dtype in ("float16", "bfloat16")]
SETTINGS += [(2, "float16", 2), (2, "bfloat16", 2), (3, "bfloat16", 2)]
SETTINGS += [(stage, "bfloat16-offloaded", 1) for stage in (2, 3)]
IDS = [f"zero{stage}-{dtype}-{ranks}" for stage, dtype, ranks in SETTINGS]
EACH = [(0, "bfloat16", 1), (1, "float16", 1), (2, "bfloat16-offloaded", 1), (2, "float16", 2), (3, "bfloat16", 2)]
"""Every stage, dtype and number of ranks once."""


def train(directory: Path, stage: int, dtype: str, ranks: int, fault: str, *, guarded: bool) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = directory / f"{fault}-{guarded}"
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={port}"]
    command += [str(PROGRAM), str(stage), dtype, fault, str(out)]
    if guarded:
        command = [sys.executable, "-m", "finitune", "run", "--run-dir", str(directory / "run"), "--", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=800)
    assert ended.returncode == (3 if fault == "always" else 0), ended.stderr.decode()
    return json.loads(out.with_name(f"{out.name}.0.json").read_text())


@pytest.mark.parametrize(("stage", "dtype", "ranks"), SETTINGS, ids=IDS)
def test_a_bad_gradient_is_found_on_its_step_and_changes_nothing(stage, dtype, ranks, tmp_path):
    rows = train(tmp_path, stage, dtype, ranks, "nan", guarded=True)
    assert len(rows) == 5
    assert all(row["sound"] for row in rows)
    assert rows[2]["weights"] == rows[1]["weights"] != rows[3]["weights"]
    assert [row["skipped"] for row in rows] == [0, 0, 1, 1, 1]
    incidents = diagnose(tmp_path / "run").incidents
    assert [(i.step, i.rank, i.symptom) for i in incidents] == [(3, ranks - 1, "nonfinite-gradient")]
    assert incidents[0].origin is not None
    assert incidents[0].origin.module == "model.layers.0.mlp.down_proj"
    assert incidents[0].reproducible


@pytest.mark.parametrize(("stage", "dtype", "ranks"), EACH)
def test_a_healthy_run_is_the_same_bit_for_bit(stage, dtype, ranks, tmp_path):
    runs = [train(tmp_path, stage, dtype, ranks, "none", guarded=guarded) for guarded in (False, True)]
    assert len(runs[0]) == 5
    assert runs[0] == runs[1]
    assert diagnose(tmp_path / "run").verdict == "healthy"


@pytest.mark.parametrize("fault", ["inf", "-inf"])
@pytest.mark.parametrize("stage", [2, 3])
def test_infinities_too(stage, fault, tmp_path):
    rows = train(tmp_path, stage, "bfloat16", 1, fault, guarded=True)
    assert rows[2]["weights"] == rows[1]["weights"] != rows[3]["weights"]


@pytest.mark.parametrize(("stage", "dtype"), [(2, "float16"), (2, "bfloat16"), (3, "bfloat16")])
def test_a_bad_loss_with_sound_gradients_is_not_applied_and_costs_no_loss_scale(stage, dtype, tmp_path):
    rows = train(tmp_path, stage, dtype, 1, "loss", guarded=True)
    assert rows[2]["loss"] == "nan"
    assert rows[2]["weights"] == rows[1]["weights"] != rows[3]["weights"]
    assert diagnose(tmp_path / "run").incidents[0].symptom == "nonfinite-loss"


@pytest.mark.parametrize(("stage", "ranks"), [(2, 1), (3, 2)])
def test_a_fault_that_persists_ends_the_run_with_the_last_good_weights(stage, ranks, tmp_path):
    rows = train(tmp_path, stage, "bfloat16", ranks, "always", guarded=True)
    assert len(rows) == 4
    assert len({row["weights"] for row in rows[1:]}) == 1
    kept = tmp_path / "run" / "last-good"
    weights = load_file(kept / "model.safetensors")
    assert weights["model.embed_tokens.weight"].numel() > 0
    assert all(bool(torch.isfinite(w).all()) for w in weights.values())
    assert len(list(kept.glob("deepspeed/*/*optim_states.pt"))) == ranks
