"""Logs of reinforcement learning, as verl and OpenRLHF print them, and of trainers that count in their own way."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import finitune
from finitune.sources import logs

WRAPPED = "np.float64({})"


def verl(step: int, loss: float, norm: float, spelt: str = "{}") -> str:
    said = {"actor/entropy": 0.5, "actor/kl_loss": 0.001 * step, "actor/pg_loss": loss, "actor/grad_norm": norm,
            "actor/lr": 1e-6, "training/global_step": step, "response_length/mean": 312.5}  # fmt: skip
    pairs = [f"{key}:{spelt.format(value)}" for key, value in said.items()]
    return f"(TaskRunner pid=7) step:{step} - global_seqlen/min:5321 - {' - '.join(pairs)}\n"


def diagnosis(folder: Path, text: str) -> finitune.Diagnosis:
    (folder / "train.log").write_text(text)
    return finitune.diagnose(folder / "train.log")


@pytest.mark.parametrize("spelt", ["{}", WRAPPED])
def test_fires_for_a_lost_gradient_of_verl(tmp_path: Path, spelt: str) -> None:
    text = "".join(verl(n, 0.01 * (-1) ** n, math.nan if n >= 23 else 0.2, spelt) for n in range(1, 31))
    (incident,) = diagnosis(tmp_path, text).incidents
    assert (incident.symptom, incident.step) == ("nonfinite-gradient", 23)
    signals = logs.read(tmp_path / "train.log").signals
    assert set(signals["lr"].values) == {1e-6}
    assert signals["loss"].values[:2].tolist() == [-0.01, 0.01]


def test_stays_quiet_for_losses_of_policies_around_zero(tmp_path: Path) -> None:
    losses = [0.0, 1e-5, -2e-3, 4e-2, 0.0, -1e-6, 0.3]
    assert diagnosis(tmp_path, "".join(verl(n, x, 0.2) for n, x in enumerate(losses * 5, start=1))).verdict == "healthy"
    bar = "Train epoch [1/1]:  10%|#  | {}/64 [00:10<00:44, 6.3s/it, pg={}, cri=0.3, kl=0.01, act_lr=5e-7]\n"
    assert diagnosis(tmp_path, "".join(bar.format(n, x) for n, x in enumerate(losses * 5, 1))).verdict == "healthy"


def test_fires_for_the_bar_of_openrlhf(tmp_path: Path) -> None:
    bar = "Train epoch [1/1]:  10%|#  | {}/64 [00:10<00:44, 6.3s/it, pg={}, cri=0.3, kl=0.01, act_lr=5e-7]\n"
    text = "".join(bar.format(n, "nan" if n > 12 else 0.01) for n in range(1, 40))
    assert diagnosis(tmp_path, text).incidents[0].step == 13


def test_the_steps_of_ms_swift_are_its_own(tmp_path: Path) -> None:
    row = "{{'loss': {}, 'grad_norm': 1.1, 'epoch': {}, 'global_step/max_steps': '{}/873', 'percentage': '1%'}}\n"
    text = "".join(row.format("nan" if n > 50 else 1.2, n / 873, n) for n in range(1, 90, 5))
    (incident,) = diagnosis(tmp_path, text).incidents
    assert (incident.step, incident.unit) == (51, "step")


@pytest.mark.parametrize(("said", "dtype"), [("using bf16-mixed", "bfloat16"), ("precision: 16-true", "float16")])
def test_the_precision_of_lightning_is_read(tmp_path: Path, said: str, dtype: str) -> None:
    (tmp_path / "train.log").write_text(f"{said}\nstep 1 loss 2.0\n")
    precision = logs.read(tmp_path / "train.log").facts.precision
    assert precision is not None
    assert precision.compute == dtype
