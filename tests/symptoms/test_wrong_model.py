"""What files beside a healthy log warn of; `tests/diagnosis/logged/test_wrong_model.py` has more of it."""

from pathlib import Path

from tests.diagnosis.logged.beside import args, falling, of, several, told, trainer


def test_fires_where_the_files_warn_of_what_no_log_shows(tmp_path: Path) -> None:
    untied = args(bf16=True, use_peft=True, lora_r=8, lora_alpha=16, lora_modules_to_save=["lm_head"])
    files = several(untied, of(tie_word_embeddings=True))(tmp_path)
    assert [incident.symptom for incident in told(tmp_path, falling(60), files).incidents] == ["wrong-model"]


def test_stays_quiet_where_they_do_not(tmp_path: Path) -> None:
    assert not told(tmp_path, falling(60), trainer(tmp_path, bf16=True)).incidents
    assert not told(tmp_path, falling(60)).incidents
