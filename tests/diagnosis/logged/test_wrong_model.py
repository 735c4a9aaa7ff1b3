"""Who learned the wrong thing leaves a healthy log: what is said of it, and what files beside it foresee."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnosis.logged.beside import Inputs, args, falling, model, names, of, requires, several, told, trainer
from tests.sources import worlds


def pads_with_end(path: Path) -> Inputs:
    """A tokenizer whose padding token is its end token, data with end tokens, a TRL that masks by id."""
    pytest.importorskip("tokenizers")
    directory = model(path)
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"pad_token": "</s>"}))
    data = worlds.jsonl(path / "rows.jsonl", [{"text": "what is it </s>"}] * 8)
    return {"model": directory, "data": data, "requirements": requires(path, "trl==0.9.6")}


def test_a_wrong_model_leaves_a_healthy_log_that_says_what_it_does_not_show(tmp_path: Path) -> None:
    found = told(tmp_path, falling(60))
    assert found.verdict == "healthy"
    assert any(one.input == "log" and "numbers do not show it" in one.why for one in found.not_checked)


@pytest.mark.parametrize(
    ("files", "cause"),
    [
        (several(args(bf16=True), pads_with_end), "pad-eos-label-masking"),
        (
            several(args(bf16=True, use_peft=True, lora_r=8, lora_alpha=16, lora_modules_to_save=["lm_head"]),
                    of(tie_word_embeddings=True)),
            "weight-tying-broken",
        ),
    ],
)  # fmt: skip
def test_files_that_foresee_a_wrong_model_name_its_cause(
    files: Callable[[Path], Inputs], cause: str, tmp_path: Path
) -> None:
    (incident,) = told(tmp_path, falling(60), files(tmp_path)).incidents
    assert names(incident)[0] == cause
    assert incident.next_check


def test_what_may_make_a_wrong_model_is_named_beside_a_healthy_log(tmp_path: Path) -> None:
    packed = told(tmp_path, falling(60), trainer(tmp_path, bf16=True, packing=True, attn_implementation="sdpa"))
    assert packed.verdict == "healthy"
    assert any("packing-mask-leak" in one.why for one in packed.not_checked)
