"""Lines of programs that nobody here wrote, each healthy and with a loss that is lost at step 60."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from finitune import diagnose
from finitune.sources import logs

LINES = {
    "litgpt": "Epoch 1 | iter {step} step {step} | loss train: {loss}, val: n/a | iter time: 312.2 ms (step)",
    "nanotron": "[INFO|DP=0]: iteration: {step} / 900 | tokens: 88K | lm_loss: {loss} | lr: 0.0001 | grad_norm: 0.5",
    "diffusers": "\\rSteps:  6%|#  | {step}/900 [01:01<20:12,  1.3s/it, lr=1e-4, step_loss={loss}]",
    "json lines": '{{"iter": {step}, "losses/total_loss": {loss}, "optimizer/grad_norm": 0.5}}',
    "torchtitan": "root - INFO - step: {step:2d}  loss: {loss}  grad_norm: 0.5  memory: 30.12GiB(38.1%)  tps: 5,412",
    "mmengine": "mmengine - INFO - Iter(train) [{step:>4}/900]  lr: 1.0e-04  eta: 1:00  grad_norm: 0.5  loss: {loss}",
}


@pytest.mark.parametrize("name", LINES)
def test_fires_and_stays_quiet(tmp_path: Path, name: str) -> None:
    for lost in (60, 1000):
        losses = {n: math.nan if n >= lost else round(2.5 * math.exp(-n / 80), 4) for n in range(1, 100)}
        text = "\n".join(LINES[name].format(step=n, loss=loss) for n, loss in losses.items()).replace("\\r", "\r")
        (tmp_path / "out.log").write_text(text)
        assert [one.step for one in diagnose(tmp_path / "out.log").incidents] == ([60] if lost == 60 else [])


def test_the_mean_of_a_run_is_no_row(tmp_path: Path) -> None:
    rows = "{'loss': 2.0, 'epoch': 0.1}\n{'loss': 1.0, 'epoch': 0.2}\n"
    (tmp_path / "out.log").write_text(f"{rows}{{'train_runtime': 9.1, 'train_loss': 1.5, 'epoch': 1.0}}\n")
    assert logs.read(tmp_path / "out.log").signals["loss"].values.tolist() == [2.0, 1.0]


def test_metrics_of_policies_are_read_from_tables(tmp_path: Path) -> None:
    rows = "".join(f"{n},{0.01 * (-1) ** n},{'nan' if n > 8 else 0.2}\n" for n in range(1, 20))
    (tmp_path / "out.csv").write_text(f"step,actor/pg_loss,actor/grad_norm\n{rows}")
    assert [one.step for one in diagnose(tmp_path / "out.csv").incidents] == [9]
