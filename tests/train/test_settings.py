"""The file of `finitune train`: what is read, and one line for whatever cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from finitune.cli.main import main
from finitune.finding import UnreadableInput
from finitune.train.rows import sft_rows
from finitune.train.settings import identity, read

YI = Path(__file__).parents[2] / "examples" / "yi"


def config(folder: Path, text: str = "", **paths: Any) -> Path:
    said = {
        "model_name_or_path": YI / "model",
        "dataset_name": YI / "train.jsonl",
        "output_dir": folder / "out",
        **paths,
    }
    lines = [f"{key}: {value}" for key, value in said.items() if value is not None]
    file = folder / "train.yaml"
    file.write_text("\n".join([*lines, text]) + "\n", encoding="utf-8")
    return file


def test_keys_of_trl_and_ours_are_told_apart(tmp_path: Path) -> None:
    written = read(
        config(tmp_path, "learning_rate: 1e-4\nfinitune: {mode: heal, gpu: V100, float32_modules: [lm_head]}")
    )
    assert written.keys["learning_rate"] == 1e-4, "YAML 1.1 reads it as text"
    assert (written.ours.mode, written.ours.gpu, written.ours.float32_modules) == ("heal", "V100", ("lm_head",))
    assert written.model == YI / "model"


def test_model_and_data_beside_the_file_are_found(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "rows.jsonl").write_text('{"text": "a"}\n')
    assert read(config(tmp_path / "inner", dataset_name="rows.jsonl")).data.name == "rows.jsonl"


@pytest.mark.parametrize(
    ("text", "paths", "line"),
    [
        ("learning_rte: 1", {}, "line 4: learning_rte: no such key (did you mean learning_rate?)"),
        ("finitune: {mod: heal}", {}, "mod: no such key of finitune (did you mean mode?)"),
        ("finitune:\n  mode: cure", {}, "line 5: mode: cure (expected one of observe, guard, heal)"),
        ("finitune:\n  merge: 3", {}, "merge: expected true or false, found a number"),
        ("finitune: guard", {}, "finitune: expected named settings"),
        ("", {"model_name_or_path": "nowhere/at/all"}, "nowhere/at/all is not on this machine"),
        ("", {"dataset_name": "none.jsonl"}, "none.jsonl is not on this machine (expected a file of training data)"),
        ("", {"dataset_name": None}, "dataset_name: not there"),
        ("", {"output_dir": None}, "output_dir: not there"),
        ("a: [", {}, "neither JSON nor YAML"),
        ("learning_rate: much", {}, "learning_rate"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_2(
    tmp_path: Path, capsys: Any, text: str, paths: dict[str, Any], line: str
) -> None:
    assert main(["train", "--plan", str(config(tmp_path, text, **paths))]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_data_without_rows_are_refused(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    assert main(["train", "--plan", str(config(tmp_path, dataset_name=tmp_path / "empty.jsonl"))]) == 2
    assert "empty.jsonl: no rows" in capsys.readouterr().err


def test_the_same_training_is_known_again_and_another_is_not(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a"}\n')
    before = identity(read(config(tmp_path, dataset_name=rows)))
    assert identity(read(config(tmp_path, "# a comment", dataset_name=rows))) == before
    assert identity(read(config(tmp_path, "seed: 1", dataset_name=rows))) != before
    rows.write_text('{"text": "b"}\n')
    assert identity(read(config(tmp_path, dataset_name=rows))) != before


def rows_of(folder: Path, *lines: str, chat: bool = True) -> Any:
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return sft_rows(folder / "rows.jsonl", chat=chat)


def test_rows_of_every_form_become_those_of_trl(tmp_path: Path) -> None:
    user, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    sharegpt = '{"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}'
    twice = '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, '
    twice += '{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}'
    instruction = '{"instruction": "q", "input": "i", "output": "a"}'
    assert rows_of(tmp_path, sharegpt) == ("answers", [{"prompt": [user], "completion": [answer]}])
    assert rows_of(tmp_path, twice) == ("conversations", [{"messages": [user, answer, user, answer]}])
    assert rows_of(tmp_path, instruction)[1][0]["prompt"][0]["content"] == "q\ni"
    assert rows_of(tmp_path, instruction, chat=False) == ("answers", [{"prompt": "q\ni\n", "completion": "a"}])
    assert rows_of(tmp_path, '{"text": "t"}') == ("text", [{"text": "t"}])
    assert rows_of(tmp_path, '{"input_ids": [1, 2], "x": 1}') == ("tokens", [{"input_ids": [1, 2]}])


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (['{"text": "t"}', '{"input_ids": [1]}'], "line 2: tokens, and the rows before it are text"),
        (['{"image": "a.png", "text": "t"}'], "line 1: image: a.png is not there"),
        (['{"chosen": "a"}'], "line 1: no form to train on, found chosen"),
    ],
)
def test_rows_that_cannot_be_trained_on_are_named(tmp_path: Path, lines: list[str], why: str) -> None:
    with pytest.raises(UnreadableInput, match=why):
        rows_of(tmp_path, *lines)
