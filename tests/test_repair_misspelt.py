"""A misspelt key: the right one as a patch of the file that has it, and none where two are as near."""

from __future__ import annotations

from pathlib import Path

import pytest

import finitune
from finitune.cli.main import main
from finitune.finding import Renamed, UnreadableInput

LAUNCH = "accelerate launch train.py --fp16 --output_dir out"
YAML = "model_name_or_path: base\noutput_dir: out  # kept\nfp16: true\n"


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("a.yaml", f"{YAML}learing_rate: 2e-6  # low\n", f"{YAML}learning_rate: 2e-6  # low\n"),
        ("a.json", '{"fp16": {"enabled": true, "loss_scal": 0},\n "steps_per_print": 9}',
         '{"fp16": {"enabled": true, "loss_scale": 0},\n "steps_per_print": 9}'),
        ("a.yaml", f'{YAML}"learing_rate": 2e-6\n', f'{YAML}"learning_rate": 2e-6\n'),
        ("a.sh", f"{LAUNCH} \\\n  --learing_rate 2e-6\n", f"{LAUNCH} \\\n  --learning_rate 2e-6\n"),
        ("a.sh", f"{LAUNCH} --max-grad-nrom=0.5\n", f"{LAUNCH} --max-grad-norm=0.5\n"),
        ("a.sh", f"for r in 1 2; do\n{LAUNCH} --learing_rate 2e-6 --seed $r\ndone\n",
         f"for r in 1 2; do\n{LAUNCH} --learning_rate 2e-6 --seed $r\ndone\n"),
    ],
)  # fmt: skip
def test_the_key_is_renamed_and_nothing_else(tmp_path: Path, name: str, before: str, after: str) -> None:
    file = tmp_path / name
    file.write_text(before)
    (finding,) = [one for one in finitune.check(file).findings if one.cause == "misspelt-setting"]
    assert finding.where.line
    assert finding.remedy
    assert finding.remedy.command
    assert finding.remedy.command.startswith("finitune repair correct-key --config")
    finitune.repair("correct-key", config=[file], apply=True)
    assert file.read_text() == after
    main(["repair", "--undo", str(file)])
    assert file.read_text() == before


def test_a_value_outside_the_choices_is_set(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    before = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_SDAAA\nmixed_precision: fp16\n"
    file.write_text(before)
    finitune.repair("correct-key", config=[file], apply=True)
    assert file.read_text() == before.replace("MULTI_SDAAA", "MULTI_SDAA")


def test_stays_quiet_where_two_keys_are_as_near(tmp_path: Path) -> None:
    file = tmp_path / "a.sh"
    file.write_text("accelerate launch train.py --bp16 --output_dir out\n")
    (finding,) = [one for one in finitune.check(file).findings if one.cause == "misspelt-setting"]
    assert finding.remedy
    assert (finding.remedy.patch, finding.remedy.command) == (None, None)
    assert finding.remedy.text == "rename bp16 to bf16 or fp16"
    with pytest.raises(UnreadableInput, match="nothing to set here"):
        finitune.repair("correct-key", config=[file], patch=True)


def test_stays_quiet_where_the_right_key_is_there(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"{YAML}learning_rate: 1e-5\nlearing_rate: 2e-6\n")
    with pytest.raises(UnreadableInput, match="learning_rate is set already"):
        finitune.repair("correct-key", config=[file], patch=True)


def test_without_a_name_it_is_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"{YAML}learing_rate: 2e-6\n")
    result = finitune.repair(config=[file], patch=True)
    assert not result.diff
    assert any("correct-key: advice" in why for why in result.not_applied)


def test_a_program_is_told_and_not_patched(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "from transformers import TrainingArguments\nargs = TrainingArguments('o', fp16=True, learing_rate=2e-5)\n"
    )
    (finding,) = [one for one in finitune.check(file).findings if one.cause == "misspelt-setting"]
    assert finding.remedy
    assert finding.remedy.command is None
    assert finding.remedy.patch == {"learing_rate": Renamed(renamed_to="learning_rate")}
