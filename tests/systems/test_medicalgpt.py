"""The example of MedicalGPT: what check says, its story in the DeepSpeed that shows it, and the newest release."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

import finitune
from finitune.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "medicalgpt"
NEWER = "deepspeed>=0.19.3"


def check(*arguments, capsys):
    """Exit code and JSON of `finitune check`."""
    code = main(["check", *arguments, "--gpu", "A100", "--data", "data/train.jsonl", "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.fixture
def here(tmp_path, monkeypatch):
    shutil.copytree(EXAMPLE, tmp_path / "medicalgpt")
    monkeypatch.chdir(tmp_path / "medicalgpt")


def test_check_names_the_founding_causes(here, capsys):
    pytest.importorskip("tokenizers")
    code, answer = check("run_sft.sh", "--model", "model", "--requirements", "requirements.txt", capsys=capsys)
    errors = {finding["cause"] for finding in answer["findings"] if finding["severity"] == "error"}
    assert code == 1
    assert errors == {"deepspeed-version-regression", "comm-overlap-race", "untrained-token-embeddings"}


def test_check_finds_nothing_in_the_cured_version(here, capsys):
    finitune.repair("reinit-token-rows", model="model", tokens="3", output="model-repaired")
    code, answer = check(
        "cured/run_sft.sh", "--model", "model-repaired", "--requirements", "cured/requirements.txt",
        "--fail-on", "info", capsys=capsys,
    )  # fmt: skip
    assert (code, answer["findings"]) == (0, [])


@pytest.mark.slow
def test_the_newest_release_skips_the_bad_steps_itself(tmp_path):
    pytest.importorskip("deepspeed", minversion="0.19.3")
    from finitune.demo import runner, story

    shutil.copytree(EXAMPLE, tmp_path / "newest")
    script = tmp_path / "newest" / "run_sft.sh"  # the bad batch comes in its first epoch
    script.write_text(script.read_text(encoding="utf-8").replace("--num_train_epochs 4", "--num_train_epochs 1"))
    (tmp_path / "newest" / "story.yaml").write_text(
        json.dumps(
            {
                "title": "newest", "needs": [NEWER],
                "steps": [
                    {
                        "name": "unguarded", "run": "bash run_sft.sh",
                        "expect": {"exit": 0, "shows": ["'grad_norm': 'inf'", "eval_loss 3"], "lacks": ["'loss': '0'"]},
                    },
                    {
                        "name": "guarded", "run": "finitune run --run-dir guarded -- bash run_sft.sh",
                        "expect": {"exit": 0, "shows": ["untrained-token-embeddings, proved", "eval_loss 3"]},
                    },
                ],
            }
        )
    )  # fmt: skip
    screen = io.StringIO()
    stage = runner.run_story(story.read(tmp_path / "newest"), tmp_path / "shown", Console(file=screen, width=200))
    assert all(step.passed for step in stage.steps), screen.getvalue()
