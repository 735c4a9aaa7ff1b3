"""`finitune repair --from RUN_DIR`: what healed a run becomes a change of the user's files, or lines to follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import finitune
from finitune.cli.main import main
from finitune.finding import UnreadableInput
from finitune.recording import Recorder


def run(folder: Path, *events: dict[str, Any]) -> Path:
    """A recording with these events about remedies, as healing writes them."""
    recorder = Recorder(folder / "run")
    recorder.header({})
    for number, one in enumerate(events, 1):
        said = {"step": 4, "incident": number, "cause": "some-cause", "action": "healed", "text": "", "targets": []}
        recorder.event("remedy", **{**said, **one})
    recorder.close()
    return folder / "run"


EPS = {
    "remedy": "raise-adam-eps",
    "state": "applied",
    "patch": {"adam_epsilon": 1e-5},
    "cause": "adam-eps-underflow-fp16",
}
ROWS = {"remedy": "drop-samples", "state": "for its step", "patch": None, "places": ["samples 2, 5 of step 4"]}
MODULES = {"remedy": "float32-modules", "state": "applied", "patch": {"float32_modules": ["layers.2.mlp"]}}


def config(folder: Path, text: str) -> Path:
    file = folder / "sft.yaml"
    file.write_text(text)
    return file


def test_what_held_is_patched_into_the_file_and_the_rest_is_said(tmp_path: Path) -> None:
    file = config(tmp_path, "fp16: true\nadam_epsilon: 1.0e-8  # torch's\nlearning_rate: 1.0e-4\n")
    healed = run(tmp_path, EPS, ROWS)
    result = finitune.repair(from_run=healed, config=file, patch=True)
    assert [(c.key, c.before, c.after) for c in result.changes] == [("adam_epsilon", 1e-8, 1e-5)]
    assert result.diff
    assert "# torch's" in result.diff
    (left,) = result.by_hand
    assert (left.remedy.name, left.places) == ("drop-samples", ["samples 2, 5 of step 4"])
    assert yaml.safe_load(file.read_text())["adam_epsilon"] == 1e-8
    finitune.repair(from_run=healed, config=file, apply=True)
    assert yaml.safe_load(file.read_text())["adam_epsilon"] == 1e-5


def test_without_files_all_of_it_is_advice(tmp_path: Path, capsys: Any) -> None:
    assert main(["repair", "--from", str(run(tmp_path, EPS, {**EPS, "step": 9}, ROWS))]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "set adam_epsilon = 1e-5 (raise-adam-eps, unsafe; adam-eps-underflow-fp16, steps 4, 9)" in said
    assert "drop-samples" in said


def test_with_a_file_the_change_is_shown_and_not_made(tmp_path: Path, capsys: Any) -> None:
    file = config(tmp_path, "fp16: true\nadam_epsilon: 1.0e-8\n")
    before = file.read_text()
    assert main(["repair", "--from", str(run(tmp_path, EPS, ROWS)), "--config", str(file)]) == 0
    said = capsys.readouterr()
    assert "+adam_epsilon: 1" in said.out
    assert "by hand: drop-samples" in said.err
    assert file.read_text() == before


def test_what_was_undone_is_left_out(tmp_path: Path) -> None:
    both = run(tmp_path, EPS, {**EPS, "state": "undone", "incident": 1}, MODULES)
    assert [one.remedy.patch for one in finitune.repair(from_run=both).by_hand] == [MODULES["patch"]]


def test_modules_go_into_the_block_of_train_where_there_is_one(tmp_path: Path) -> None:
    healed = run(tmp_path, MODULES)
    file = config(tmp_path, "fp16: true\nfinitune:\n  mode: heal\n")
    finitune.repair(from_run=healed, config=file, apply=True)
    assert yaml.safe_load(file.read_text())["finitune"] == {"mode": "heal", "float32_modules": ["layers.2.mlp"]}
    plain = tmp_path / "plain.yaml"
    plain.write_text("fp16: true\n")
    result = finitune.repair(from_run=healed, config=plain, patch=True)
    assert not result.changes
    assert result.by_hand


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([{**EPS, "remedy": None, "state": "advice"}], "nothing was healed in it"),
        ([EPS, {**EPS, "state": "undone", "incident": 1}], "every remedy was undone"),
    ],
)
def test_a_run_that_nothing_healed_is_said(tmp_path: Path, events: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(UnreadableInput, match=why):
        finitune.repair(from_run=run(tmp_path, *events))


def test_wrong_use_is_one_line(tmp_path: Path, capsys: Any) -> None:
    healed = str(run(tmp_path, EPS))
    for words in (["--from", str(tmp_path)], ["raise-adam-eps", "--from", healed], ["--from", healed, "--apply"]):
        assert main(["repair", *words]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
