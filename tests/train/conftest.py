"""What the trainings of these tests begin with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.train.test_settings import YI


@pytest.fixture(scope="session")
def world(tmp_path_factory: Any) -> dict[str, Path]:
    """A tiny model with a tokenizer, and 32 rows."""
    from finitune.gym.models import tiny

    home = tmp_path_factory.mktemp("world")
    tiny("llama", hidden=32, vocabulary=512).save_pretrained(home / "model")
    for file in (YI / "model").glob("*token*"):
        shutil.copy(file, home / "model")
    shutil.copy(YI / "model" / "chat_template.jinja", home / "model")
    rows = (YI / "train.jsonl").read_text(encoding="utf-8").splitlines()[:32]
    (home / "rows.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return {"model_name_or_path": home / "model", "dataset_name": home / "rows.jsonl"}
