"""A newcomer's path: an empty folder with a `train.py`, five commands, and no path typed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("torch")

HEALTHY = """
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(6):
        x = torch.randn(4, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print("trained")
"""
SICK = HEALTHY.replace("x = torch.randn(4, 8)", "x = torch.randn(4, 8) if step < 3 else torch.zeros(4, 8)").replace(
    ".square().mean()", ".square().mean() + (x.norm(dim=1) / x.norm(dim=1)).mean()"
)  # from step 4 on 0 / 0

TRAINER = """
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    rows = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]} for _ in range(16)]
    args = TrainingArguments(
        output_dir="out", max_steps=4, learning_rate=1e-3, max_grad_norm=1.0, per_device_train_batch_size=4,
        report_to="none", use_cpu=True, save_strategy="no", disable_tqdm=True,
    )
    Trainer(model=model, args=args, train_dataset=rows).train()
    print("trained")
"""


def finitune(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from finitune.cli.main import main; sys.exit(main())"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "understood", "healthy"),
    [
        (HEALTHY, "PyTorch loop: lr 1e-3, clipping at 1", True),
        (SICK, "PyTorch loop: lr 1e-3, clipping at 1", False),
        (TRAINER, "transformers Trainer: lr 1e-3, clipping at 1", True),
    ],
    ids=["healthy", "sick", "trainer"],
)
def test_from_an_empty_folder_to_a_report(tmp_path: Path, program: str, understood: str, *, healthy: bool) -> None:
    if "transformers" in program:
        pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(textwrap.dedent(program).lstrip())

    checked = finitune(tmp_path, "check", ".")
    assert checked.returncode == 0, checked.stderr
    assert f"train.py as {understood}" in checked.stdout
    assert not (tmp_path / "runs").exists()

    ran = finitune(tmp_path, "run", "--", sys.executable, "train.py")
    assert ran.returncode == (0 if healthy else 3), ran.stderr
    assert ("trained" in ran.stdout) is healthy
    (run,) = (tmp_path / "runs").iterdir()

    diagnosed = finitune(tmp_path, "diagnose")
    assert f"runs/{run.name}, the newest run" in diagnosed.stderr
    assert diagnosed.returncode == (0 if healthy else 1), diagnosed.stdout
    if healthy:
        assert "healthy" in diagnosed.stdout
    else:
        assert "steps 4-6" in diagnosed.stdout
        assert "train.py:8" in diagnosed.stdout

    pytest.importorskip("matplotlib")
    reported = finitune(tmp_path, "report")
    assert reported.returncode == 0, reported.stderr
    assert Path(tmp_path, reported.stdout.strip()).read_text().startswith("<!doctype html>")
