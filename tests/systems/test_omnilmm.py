"""The example of MiniCPM-V: what check says of its three cases and of their cures, and its whole story."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from finitune.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "omnilmm"
CASES = {
    "finetune_lora.sh": {"fp16-activation-overflow", "vision-tower-fp16"},
    "finetune_lora_photos.sh": {"vision-tower-fp16"},
    "finetune_lora_single.sh": {"adam-eps-underflow-fp16", "vision-tower-fp16"},
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    shutil.copytree(EXAMPLE, tmp_path / "omnilmm")
    monkeypatch.chdir(tmp_path / "omnilmm")


def causes_found(script, capsys):
    main(["check", script, "--model", "model", "--data", "data/signs.json", "--gpu", "V100", "--format", "json"])
    return {finding["cause"] for finding in json.loads(capsys.readouterr().out)["findings"]}


@pytest.mark.parametrize("script", CASES)
def test_check_tells_the_three_cases_apart(here, capsys, script):
    assert causes_found(script, capsys) == CASES[script]


@pytest.mark.parametrize("script", CASES)
def test_check_finds_nothing_in_the_cured_versions(here, capsys, script):
    assert causes_found(f"cured/{script}", capsys) == set()
