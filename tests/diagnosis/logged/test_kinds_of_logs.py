"""Logs of kinds that people have, as each trainer prints them: what is read of them, and which causes stay away."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import finitune
from finitune.finding import Diagnosis
from finitune.sources import logs


def diagnosis(tmp_path: Path, text: str) -> Diagnosis:
    (tmp_path / "train.log").write_text(text)
    found = finitune.diagnose(tmp_path / "train.log")
    assert isinstance(found, Diagnosis)
    return found


def causes(found: Diagnosis) -> list[str]:
    return [cause.cause for incident in found.incidents for cause in incident.causes]


def rows(count: int) -> str:
    return "".join(f"{{'loss': {2 - 0.01 * n:.4f}, 'grad_norm': 1.1, 'epoch': {n / 100}}}\n" for n in range(count))


def megatron(scale: float, bad: int = 19) -> str:
    return "".join(
        f" iteration {100 * n:8d}/  500000 | consumed samples: {1600 * n:12d} | elapsed time (ms): 512.3 | "
        f"learning rate: 1.500E-05 | lm loss: {'nan' if n >= bad else f'{7 - 0.1 * n:.6E}'} | "
        f"loss scale: {scale:.1f} | grad norm: {'nan' if n >= bad else 1.05} | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        for n in range(1, 25)
    )


def test_users_9_megatron_s_own_steps_scale_and_rate_are_read(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(megatron(1.0))
    signals = logs.read(tmp_path / "train.log").signals
    assert signals["loss"].steps[:2].tolist() == [100, 200]
    assert set(signals["loss_scale"].values) == {1.0}
    assert set(signals["lr"].values) == {1.5e-5}
    found = diagnosis(tmp_path, megatron(1.0))
    assert found.incidents[0].step == 1900
    assert not any("fp16" in cause for cause in causes(found)), "a loss scale of 1 is that of bfloat16"


def test_users_9_a_loss_scale_is_that_of_float16(tmp_path: Path) -> None:
    assert "fp16-activation-overflow" in causes(diagnosis(tmp_path, megatron(65536.0)))


@pytest.mark.parametrize(
    "ending",
    [
        "[rank3]:[E ProcessGroupNCCL.cpp:563] [Rank 3] Watchdog caught collective operation timeout: Work",
        "Signal 6 (SIGABRT) received by PID 123 (TID 0)",
        "terminate called after throwing an instance of 'std::runtime_error'",
    ],
)
def test_users_10_an_ending_of_a_launcher_is_a_crash(tmp_path: Path, ending: str) -> None:
    (incident,) = diagnosis(tmp_path, rows(10) + ending + "\n").incidents
    assert incident.symptom == "crash"
    assert not diagnosis(tmp_path, f"{ending}\n" + rows(10)).incidents


def test_stays_quiet_about_a_run_that_somebody_ended(tmp_path: Path) -> None:
    assert not diagnosis(tmp_path, rows(10) + "Signal 15 (SIGTERM) received by PID 123\n").incidents


def test_nemo_s_bar_is_read(tmp_path: Path) -> None:
    text = "\r".join(
        f"Epoch 0: :   {n // 10}%| | {n}/1000 [00:10<10:00, v_num=abcd, reduced_train_loss="
        f"{2 - 0.01 * n if n < 50 else math.nan:.3f}, global_step={n}.0, consumed_samples={n * 128}.0]"
        for n in range(1, 60)
    )
    assert diagnosis(tmp_path, text).incidents[0].step == 50


def test_an_assertion_alone_is_about_an_index(tmp_path: Path) -> None:
    """Losses are finite, so nobody samples from NaN."""
    found = diagnosis(tmp_path, rows(3) + "RuntimeError: CUDA error: device-side assert triggered\n")
    assert causes(found)[0] == "tokenizer-vocab-mismatch"
    assert "fp16-activation-overflow" not in causes(found)


@pytest.mark.parametrize("frameless", ["hardware-fault-sdc", "cudnn-sdpa-bug", "moe-kernel-uninit"])
def test_users_7_no_rare_cause_without_its_frame(tmp_path: Path, frameless: str) -> None:
    lost = "".join(f"step {n}: loss {2 - 0.01 * n if n < 40 else math.nan}\n" for n in range(60))
    assert frameless not in causes(diagnosis(tmp_path, lost))


def test_users_7_a_hardware_fault_is_named_where_the_device_complains(tmp_path: Path) -> None:
    lost = "".join(f"step {n}: loss {2 - 0.01 * n if n < 40 else math.nan}\n" for n in range(60))
    assert "hardware-fault-sdc" in causes(diagnosis(tmp_path, f"{lost}NVRM: Xid 63: row remapping pending\n"))


def test_users_12_a_guess_without_a_setting_has_no_patch(tmp_path: Path) -> None:
    """The step may have an empty row of the mask; on which side the run pads nobody saw."""
    for incident in diagnosis(tmp_path, megatron(1.0, bad=3)).incidents:
        for cause in incident.causes:
            assert not any(remedy.patch and remedy.safety == "safe" for remedy in cause.remedies), cause.cause
