"""The example of Yi: what check says of it, and its whole story in real DeepSpeed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import finitune
from finitune.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "yi"


def check(*arguments, capsys):
    """Exit code and JSON of `finitune check`."""
    code = main(["check", *arguments, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def here(tmp_path, monkeypatch):
    shutil.copytree(EXAMPLE, tmp_path / "yi")
    monkeypatch.chdir(tmp_path / "yi")


def test_check_names_the_founding_cause(here, capsys):
    pytest.importorskip("tokenizers")
    code, answer = check("run_sft_Yi.sh", "--model", "model", "--data", "train.jsonl", "--gpu", "V100", capsys=capsys)
    errors = [finding for finding in answer["findings"] if finding["severity"] == "error"]
    assert code == 1
    assert [finding["cause"] for finding in errors] == ["untrained-token-embeddings"]
    assert errors[0]["where"]["tokens"] == [6]


def test_check_finds_nothing_in_the_cured_version(here, capsys):
    finitune.repair("reinit-token-rows", model="model", tokens="6,7", output="model-repaired")
    code, answer = check(
        "cured/run_sft_Yi.sh", "--model", "model-repaired", "--data", "train.jsonl", "--gpu", "V100",
        "--fail-on", "info", capsys=capsys,
    )  # fmt: skip
    assert (code, answer["findings"]) == (0, [])
