"""The verdict `incomplete`: what was given, or named by it, and could not be used."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.sources import worlds

from finitune.cli.main import main
from finitune.finding import UnreadableInput, as_json
from finitune.preflight import check
from finitune.sources.data import tokenizer

SOUND = {"bf16": True, "learning_rate": 1e-5, "max_grad_norm": 1.0, "per_device_train_batch_size": 8}
ROW = {"messages": [{"role": "user", "content": "what is it"}, {"role": "assistant", "content": "the answer"}]}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def config(name: str = "args.json", **settings: Any) -> str:
    Path(name).write_text(json.dumps({**SOUND, **settings}))
    return name


def data(name: str = "train.jsonl") -> str:
    Path(name).write_text(json.dumps(ROW) + "\n")
    return name


def why(result: Any, name: str) -> str:
    return "; ".join(one.why for one in result.not_checked if one.input == name)


def test_stays_quiet_for_a_sound_configuration_that_was_read_whole() -> None:
    result = check(config())
    assert result.verdict == "ok"
    assert main(["check", "args.json", "--fail-on", "incomplete"]) == 0


def test_fires_for_a_named_model_that_is_not_here(here: Path) -> None:
    for name, expected in (("meta-llama/Llama-2-7b-hf", "is not on this machine"), ("./base", "no model directory")):
        result = check(config(model_name_or_path=name))
        assert result.verdict == "incomplete"
        assert expected in why(result, "model")
    assert main(["check", "args.json"]) == 0
    assert main(["check", "args.json", "--fail-on", "incomplete"]) == 1
    assert main(["check", "args.json", "--fail-on", "info"]) == 0


def test_users_6_a_named_model_and_its_data_are_read(here: Path) -> None:
    worlds.model(here / "base")
    result = check(config(model_name_or_path="base", train_file=data()))
    assert "base as model, named by args.json" in result.understood
    assert "train.jsonl as data, named by args.json" in result.understood
    assert {"model", "data"}.isdisjoint({one.input for one in result.not_checked})
    assert result.verdict != "incomplete"


def test_users_6_a_name_on_the_hub_is_looked_up_in_its_cache(here: Path) -> None:
    snapshot = here / "hub" / "models--some--llama" / "snapshots" / "abc"
    snapshot.parent.mkdir(parents=True)
    worlds.model(snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    assert any("cache of the hub" in line for line in check(config(model_name_or_path="some/llama")).understood)
    result = check(config(), model="some/llama")
    assert "model" not in {one.input for one in result.not_checked}
    assert check(config(), model="some/other").verdict == "incomplete"
    with pytest.raises(UnreadableInput, match="no such file"):
        check(config(), model="nowhere")


def test_users_6_data_may_be_a_folder(here: Path) -> None:
    (here / "d").mkdir()
    data("d/eval.jsonl")
    data("d/train.jsonl")
    model = worlds.model(here / "base")
    result = check(config(), model=model, data="d")
    assert "d/train.jsonl as data; 1 more files there were not read" in result.understood
    (here / "d" / "train.jsonl").write_text("{broken\n")
    with pytest.raises(UnreadableInput, match="line 1"):
        check(config(), model=model, data="d")
    named = check(config(train_file="d/train.jsonl"), model=model)
    assert named.verdict == "incomplete"
    assert "line 1" in why(named, "data")


def test_fires_for_data_without_a_tokenizer() -> None:
    result = check(config(), data=data())
    assert result.verdict == "incomplete"
    assert "not tokenised: no tokenizer (give --model DIR)" in why(result, "data")


def test_users_5_token_rows_are_not_ok_without_the_package(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Any) -> None:
        raise tokenizer.NoTokenizer("the package tokenizers is not installed (pip install tokenizers)")

    model = worlds.model(here / "base")
    monkeypatch.setattr(tokenizer, "load", missing)
    assert check(config(), model=model, data=data()).verdict == "incomplete"


def test_fires_for_a_file_that_is_named_and_missing() -> None:
    Path("run.sh").write_text("accelerate launch --config_file acc.yaml t.py --bf16 --learning_rate 1e-5\n")
    result = check("run.sh")
    assert result.verdict == "incomplete"
    assert "names acc.yaml, which is not here" in why(result, "config")


def test_fires_for_a_file_of_no_known_format_beside_others() -> None:
    Path("compose.yaml").write_text("services: {a: {image: b}}\n")
    result = check(config(), "compose.yaml")
    assert result.verdict == "incomplete"
    assert "compose.yaml: not a configuration" in why(result, "config")
    with pytest.raises(UnreadableInput, match="not a configuration"):
        check("compose.yaml")
    assert main(["check", "compose.yaml"]) == 2


def test_stays_quiet_for_a_single_value_that_is_computed() -> None:
    Path("train.py").write_text(
        "from transformers import TrainingArguments\nimport os\n"
        "TrainingArguments('o', bf16=True, max_grad_norm=1.0, learning_rate=float(os.environ['LR']))\n"
    )
    result = check("train.py")
    assert result.verdict == "ok"
    assert "learning_rate (computed in line 3)" in why(result, "config")


def test_findings_outrank_it() -> None:
    assert check(config(learning_rate=1.0, model_name_or_path="a/b")).verdict == "broken"


def test_users_5_nothing_at_all_is_not_ok() -> None:
    assert check().verdict == "incomplete"


def test_the_json_of_what_was_not_checked_is_that_of_the_contract() -> None:
    out = as_json(check(config(model_name_or_path="a/b")))
    assert out["verdict"] == "incomplete"
    assert all(set(entry) == {"input", "why"} for entry in out["not_checked"])


def test_users_each_file_is_reported_and_the_highest_code_is_returned(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text("learning_rate: x\nfp16: true\n")
    Path("notes.txt").write_text("hello\n")
    files = ["bad.yaml", "notes.txt", config("high.json", learning_rate=1.0), "nowhere.yaml"]
    assert main(["check", "--each", *files]) == 2
    out = capsys.readouterr().out
    assert "high.json" in out
    assert "bad.yaml: learning_rate" in " ".join(out.split())
    assert "nowhere.yaml: no such file" in " ".join(out.split())
    assert "without settings that are known here: notes.txt" in out
    assert main(["check", "--each", "notes.txt", "high.json"]) == 1
    assert main(["check", "--each", "notes.txt", config()]) == 0


def test_each_says_how_many_of_the_files_were_read(capsys: pytest.CaptureFixture[str]) -> None:
    Path("notes.txt").write_text("hello\n")
    assert main(["check", "--each", "notes.txt"]) == 0
    out = capsys.readouterr().out
    assert "0 of 1 files are configurations that are known here" in out
    assert "ok:" not in out


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("a.yaml", "learning_rate: 1e-4\n bf16: true\n", "line 2 column 6"),
        ("a.json", '{"zero_optimization": {"stage": 3,}', "line 1 column 35"),
        ("a.yml", "base_model: m\nadapter: [lora\n", "line 3"),
        ("a.py", "from transformers import TrainingArguments\nTrainingArguments('o', fp16=True", "line 2: not Python"),
    ],
)
def test_each_fails_for_a_damaged_file_that_was_to_be_a_configuration(
    capsys: pytest.CaptureFixture[str], name: str, text: str, place: str
) -> None:
    Path(name).write_text(text)
    assert main(["check", "--each", "-q", config(), name]) == 2
    assert f"{name}: {place}" in capsys.readouterr().err
    result = check(str(Path.cwd()))
    assert any(f"{name}: {place}" in one.why for one in result.not_checked)
    assert result.verdict == ("ok" if name == "a.py" else "incomplete")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("chart.yaml", "learning_rate: {{ .Values.rate }}\nfp16: {{ .Values.half }}\n"),
        ("compose.yaml", "services:\n  a: [\n"),
        ("data.json", '{"text": "fp16: true", "name": "x"} {"text": 1}'),
        ("old.py", "print 'learning_rate', 3\n"),
    ],
)
def test_each_passes_over_a_damaged_file_of_another_kind(name: str, text: str) -> None:
    Path(name).write_text(text)
    assert main(["check", "--each", "-q", config(), name]) == 0


def test_quiet_prints_findings_alone_and_keeps_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "-q", config()]) == 0
    assert not capsys.readouterr().out
    assert main(["check", "-q", config("high.json", learning_rate=1.0)]) == 1
    out = capsys.readouterr().out
    assert "lr-too-high" in out
    assert not {"passed", "not checked", "as training arguments"} & set(out.split("  "))
    assert "not checked" not in out


def test_quiet_leaves_no_file_out_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--each", "-q", config(), config("rate.yaml", learning_rate="fast"), "nosuch.yaml"]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert [line.split(": ")[1] for line in said.err.splitlines()] == ["rate.yaml", "nosuch.yaml"]


def test_each_takes_files_and_says_so_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--each", "-q", str(tmp_path)]) == 2
    assert "a folder (expected a file" in capsys.readouterr().err


def test_a_launch_of_which_nothing_is_known_but_its_program_is_incomplete() -> None:
    Path("a.sh").write_text("swift sft\n")
    result = check("a.sh")
    assert result.verdict == "incomplete"
    assert any("nothing in it is looked at here" in one.why for one in result.not_checked)
