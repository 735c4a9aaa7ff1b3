"""The Unsloth example: its story passes, and what its files say is what the story relies on."""

from __future__ import annotations

from pathlib import Path

import pytest

from finitune.preflight import check

EXAMPLE = Path(__file__).parents[2] / "examples" / "unsloth"
MODEL, DATA = EXAMPLE / "model", EXAMPLE / "train.jsonl"


def findings(config):
    result = check(EXAMPLE / config, model=MODEL, data=DATA, gpu="T4")
    return [(f.cause, f.severity, list(f.where.tokens or ()), f.where.module) for f in result.findings]


def test_fires_check_names_the_padding_token_and_the_block():
    pytest.importorskip("tokenizers")
    expected = ("fp16-activation-overflow", "warning", [0], "model.layers.2.mlp")
    assert findings("sft_config.yaml") == [expected]


def test_stays_quiet_check_of_the_cured_settings_finds_nothing():
    pytest.importorskip("tokenizers")
    assert findings("cured/sft_config.yaml") == []


def test_the_users_files_know_nothing_of_finitune_and_are_small():
    files = [
        path
        for path in EXAMPLE.rglob("*")
        if path.is_file() and path.name not in ("story.yaml", "train.yaml", "README.md")
    ]
    texts = [path.read_text() for path in files if path.suffix in (".py", ".yaml", ".json", ".jsonl")]
    assert not [text for text in texts if "finitune" in text]
    assert sum(path.stat().st_size for path in MODEL.iterdir()) < 2**20


def test_no_weight_is_non_finite_and_none_leaves_the_range_of_float16():
    pytest.importorskip("tokenizers")
    result = check(EXAMPLE / "cured/sft_config.yaml", model=MODEL, data=DATA)
    assert not result.findings
