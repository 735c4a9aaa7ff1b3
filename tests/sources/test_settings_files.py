"""Programs that read their settings from a file of their own: what they hand on is known, and nothing else is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from finitune.preflight import check

PROGRAM = """
import json, yaml, hydra
from omegaconf import OmegaConf
from pathlib import Path
from transformers import TrainingArguments, Trainer
{read}
args = TrainingArguments(output_dir="o", learning_rate={rate}, bf16=True, per_device_train_batch_size=4)
Trainer(model="gpt2", args=args, train_dataset=rows).train()
"""
HYDRA = """
import hydra
from transformers import TrainingArguments, Trainer

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    args = TrainingArguments(output_dir="o", learning_rate=cfg.optim.lr, bf16=True)
    Trainer(model="gpt2", args=args, train_dataset=rows).train()
main()
"""
WAYS = {
    "an open file": ('with open("c.yaml") as f:\n    cfg = yaml.safe_load(f)', 'cfg["optim"]["lr"]'),
    "in one line": ('cfg = yaml.safe_load(open("c.yaml"))', 'cfg["optim"]["lr"]'),
    "a path": ('cfg = yaml.load(Path("c.yaml").read_text(), Loader=yaml.SafeLoader)', 'cfg["optim"]["lr"]'),
    "JSON": ('NAME = "c.json"\nwith open(NAME) as f:\n    cfg = json.load(f)', 'cfg["optim"]["lr"]'),
    "OmegaConf": ('cfg = OmegaConf.load("c.yaml")', "cfg.optim.lr"),
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def causes(rate: float, program: str) -> set[str]:
    Path("conf").mkdir(exist_ok=True)
    for name in ("c.yaml", "conf/config.yaml"):
        Path(name).write_text(f"optim: {{lr: {rate}}}\n")
    Path("c.json").write_text(f'{{"optim": {{"lr": {rate}}}}}')
    Path("train.py").write_text(program)
    return {one.cause for one in check("train.py", gpu="A100").findings}


@pytest.mark.parametrize("way", WAYS)
def test_fires_and_stays_quiet_by_what_the_file_says(way: str) -> None:
    read, rate = WAYS[way]
    program = PROGRAM.format(read=read, rate=rate)
    assert causes(0.5, program) == {"lr-too-high"}
    assert causes(1e-5, program) == set()


def test_hydra_hands_over_its_file_and_what_is_typed() -> None:
    assert causes(0.5, HYDRA) == {"lr-too-high"}
    Path("run.sh").write_text("#!/bin/bash\npython train.py optim.lr=1e-5\n")
    assert not check("run.sh", gpu="A100").findings
    assert causes(1e-5, HYDRA) == set()
    Path("run.sh").write_text("#!/bin/bash\npython train.py optim.lr=0.5\n")
    assert {one.cause for one in check("run.sh", gpu="A100").findings} == {"lr-too-high"}


@pytest.mark.parametrize("named", ["absent.yaml", "pipe.yaml", "broken.yaml", "list.yaml"])
def test_what_is_not_there_or_no_settings_is_computed(named: str) -> None:
    os.mkfifo("pipe.yaml")
    Path("broken.yaml").write_text("a: [1\n")
    Path("list.yaml").write_text("- 1\n")
    program = PROGRAM.format(read=f'cfg = yaml.safe_load(open("{named}"))', rate='cfg["optim"]["lr"]')
    Path("train.py").write_text(program)
    result = check("train.py", gpu="A100")
    assert not result.findings
    assert any("learning_rate (computed in line" in one.why for one in result.not_checked)
