"""Trees of Hydra: files lie over each other as Hydra 1.3 lays them, and each value is found and patched in its file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from finitune.cli.main import main
from finitune.finding import Finding, UnreadableInput
from finitune.preflight import check
from finitune.repairs.repair import repair
from finitune.sources.configs import composition
from finitune.sources.text import config_of

FILES = {
    "data/text.yaml": "batch_size: 4\n",
    "model/big.yaml": "defaults:\n  - net: wide\n  - _self_\n_target_: my.Lit\ncompile: false\n",
    "model/net/wide.yaml": "width: 3\n",
    "model/net/slim.yaml": "width: 1\n",
    "optim/adamw.yaml": "_target_: torch.optim.AdamW\nlr: 1.0e-4  # as in the paper\n",
    "optim/sgd.yaml": "_target_: torch.optim.SGD\nlr: 0.5\n",
    "trainer/default.yaml": "_target_: lightning.Trainer\nmax_steps: 100\nprecision: bf16-mixed\n",
    "trainer/gpu.yaml": "defaults:\n  - default\naccelerator: gpu\n",
    "experiment/e1.yaml": (
        "# @package _global_\ndefaults:\n  - override /optim: sgd\n  - override /model/net: slim\n"
        "trainer:\n  gradient_clip_val: 0.5\nseed: 9\n"
    ),
}
LIST = (
    "defaults:\n{first}  - data: text\n  - model: big\n  - optim: adamw\n  - trainer: gpu\n"
    "  - experiment: {experiment}\n  - optional local: default\n{last}seed: 1\ntrainer:\n  max_steps: 7\n"
)
SELF = "  - _self_\n"
MODEL = {"net": {"width": 3}, "_target_": "my.Lit", "compile": False}
TRAINER = {
    "_target_": "lightning.Trainer", "max_steps": 100, "precision": "bf16-mixed", "accelerator": "gpu",
}  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        write(name, text)


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return name


def root(first: str = "", last: str = "", experiment: str = "null") -> str:
    return write("train.yaml", LIST.format(first=first, last=last, experiment=experiment))


def composed(name: str) -> dict[str, Any]:
    return composition.of_file(Path(name), config_of(Path(name))).settings


@pytest.mark.parametrize(("first", "last", "steps"), [(SELF, "", 100), ("", SELF, 7), ("", "", 7)])
def test_the_file_itself_counts_where_its_list_has_it(first: str, last: str, steps: int) -> None:
    found = composed(root(first, last))
    assert found["trainer"] == {**TRAINER, "max_steps": steps}
    assert found["model"] == MODEL
    assert found["optim"] == {"_target_": "torch.optim.AdamW", "lr": 1e-4}


def test_an_experiment_chooses_anew_and_lies_at_the_top() -> None:
    found = composed(root(first=SELF, experiment="e1"))
    assert found["optim"] == {"_target_": "torch.optim.SGD", "lr": 0.5}
    assert found["model"]["net"] == {"width": 1}
    assert found["trainer"]["gradient_clip_val"] == 0.5
    assert found["seed"] == 9


def test_packages_say_under_which_keys_a_file_lies() -> None:
    write("both.yaml", "defaults:\n  - optim@actor.optim: adamw\n  - trainer/gpu@_global_\n  - _self_\nx: 1\n")
    lr = {"_target_": "torch.optim.AdamW", "lr": 1e-4}
    assert composed("both.yaml") == {"actor": {"optim": lr}, **TRAINER, "x": 1}


def test_a_circle_of_files_ends() -> None:
    write("model/big.yaml", "defaults:\n  - /trainer: gpu\nx: 1\n")
    write("trainer/gpu.yaml", "defaults:\n  - /model: big\ny: 1\n")
    assert composed(root())["seed"] == 1


def test_files_that_no_person_wrote_are_refused_in_one_line() -> None:
    for number in range(9):
        write(f"big/n{number}.yaml", "".join(f"k{i}: {i}\n" for i in range(2000)))
    write("many.yaml", "defaults:\n" + "".join(f"  - big: n{number}\n" for number in range(9)) + "x: 1\n")
    with pytest.raises(UnreadableInput, match=r"beyond 131072 characters in the files that many\.yaml names"):
        check("many.yaml")
    circle = "defaults:\n" + "".join(f"  - /g{number}: x\n" for number in range(9))
    for number in range(9):
        write(f"g{number}/x.yaml", circle)
    with pytest.raises(UnreadableInput, match="its defaults name more than 100 files"):
        check(write("circle.yaml", circle))


def test_links_and_pipes_among_the_files_are_not_read() -> None:
    os.mkfifo("optim/pipe.yaml")
    Path("optim/zero.yaml").symlink_to("/dev/zero")
    for name in ("pipe", "zero", "../../etc/x"):
        write("odd.yaml", f"defaults:\n  - optim: {name}\nmodel:\n  _target_: torch.optim.AdamW\n  lr: 0.1\n")
        assert finding("lr-too-high", "odd.yaml").where.line == 5


def finding(cause: str, name: str = "train.yaml") -> Finding:
    (found,) = [one for one in check(name).findings if one.cause == cause]
    return found


def test_fires_with_the_file_of_the_group_and_its_line() -> None:
    write("optim/adamw.yaml", FILES["optim/adamw.yaml"].replace("1.0e-4", "0.5"))
    found = finding("lr-too-high", root())
    assert (found.where.file, found.where.line) == ("optim/adamw.yaml", 2)
    assert found.remedy is not None
    assert found.remedy.command == "finitune repair lower-learning-rate --config train.yaml --patch"


def test_of_two_places_of_a_value_the_one_that_counts_is_named() -> None:
    write("train.yaml", LIST.format(first="", last=SELF, experiment="null") + "optim:\n  lr: 0.5\n")
    assert (finding("lr-too-high").where.file, finding("lr-too-high").where.line) == ("train.yaml", 13)
    write("train.yaml", LIST.format(first=SELF, last="", experiment="null") + "optim:\n  lr: 0.5\n")
    assert not check("train.yaml").findings, "the file of the group counts"
    text = "trainer:\n  _target_: lightning.Trainer\n  precision: bf16-mixed\n"
    text += "optimizer:\n  _target_: torch.optim.AdamW\n  lr: 0.9\ncritic:\n  lr: 0.9\n"
    assert finding("lr-too-high", write("flat.yaml", text)).where.line == 6


def test_the_file_of_the_group_is_patched_and_taken_back() -> None:
    text = write("optim/adamw.yaml", FILES["optim/adamw.yaml"].replace("1.0e-4", "0.5"))
    before = {name: Path(name).read_text() for name in [*FILES, root()]}
    result = repair("lower-learning-rate", config="train.yaml", apply=True)
    after = {name: Path(name).read_text() for name in before}
    assert [name for name in before if after[name] != before[name]] == [text]
    assert after[text] == before[text].replace("0.5", "2.0e-5")
    assert not check("train.yaml").findings
    assert [(one.file, one.key) for one in result.changes] == [("optim/adamw.yaml", "lr")]
    assert main(["repair", "--undo", text]) == 0
    assert Path(text).read_text() == before[text]


def test_precision_and_the_dtype_of_loading_are_patched_where_they_stand() -> None:
    write("model/big.yaml", "_target_: transformers.AutoModelForCausalLM.from_pretrained\ntorch_dtype: float16\n")
    write("trainer/default.yaml", FILES["trainer/default.yaml"].replace("bf16-mixed", "16-mixed"))
    assert (finding("fp16-trainable-weights", root()).remedy or Finding).patch == {"dtype": "float32"}
    repair("float32-trainable-weights", config="train.yaml", apply=True)
    assert "torch_dtype: float32\n" in Path("model/big.yaml").read_text()
    assert not [one for one in check("train.yaml").findings if one.cause == "fp16-trainable-weights"]
    repair("use-bfloat16", config="train.yaml", apply=True)
    assert "precision: bf16-mixed\n" in Path("trainer/default.yaml").read_text()


def test_a_key_is_added_where_its_section_says_what_it_builds() -> None:
    write("trainer/default.yaml", FILES["trainer/default.yaml"].replace("bf16-mixed", "16-mixed"))
    write("optim/adamw.yaml", FILES["optim/adamw.yaml"].replace("1.0e-4", "2.0e-3"))
    repair("clip-gradients", config=root(), apply=True)
    assert yaml.safe_load(Path("trainer/default.yaml").read_text())["gradient_clip_val"] == 1.0


def test_a_tree_is_one_training_of_its_folder() -> None:
    """Options of its groups are none, the chosen ones and the others."""
    write("optim/adamw.yaml", FILES["optim/adamw.yaml"].replace("1.0e-4", "0.5"))
    write("local/mine.yaml", "learning_rate: 0.5\nbf16: true\n")
    root()
    result = check(".")
    assert result.understood[0] == ".: 1 training among 11 programs, scripts and configurations"
    assert [(one.cause, one.where.file, one.where.line) for one in result.findings] == [
        ("lr-too-high", "optim/adamw.yaml", 2)
    ]


def test_an_option_by_itself_and_an_optimizer_without_a_trainer_are_read_as_what_they_build() -> None:
    write("optim/sgd.yaml", FILES["optim/sgd.yaml"].replace("0.5", "0.01"))
    assert not check("optim/sgd.yaml").findings
    assert not check(write("loop.yaml", "defaults:\n  - optim: sgd\nepochs: 3\n")).findings
    write("optim/adamw.yaml", FILES["optim/adamw.yaml"].replace("1.0e-4", "0.01"))
    found = finding("lr-too-high", "optim/adamw.yaml")
    assert (found.where.line, "adamw" in found.message) == (2, True)


def refused(name: str, config: str = "train.yaml") -> str:
    before = {path: path.read_text() for path in Path().rglob("*.yaml")}
    with pytest.raises(UnreadableInput) as raised:
        repair(name, config=config, apply=True)
    assert {path: path.read_text() for path in Path().rglob("*.yaml")} == before
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_an_interpolation_is_refused_and_named() -> None:
    write("optim/adamw.yaml", FILES["optim/adamw.yaml"].replace("1.0e-4", "${rate}"))
    write("train.yaml", LIST.format(first="", last=SELF, experiment="null") + "rate: 0.5\n")
    found = finding("lr-too-high")
    assert (found.where.file, found.where.line) == ("optim/adamw.yaml", 2)
    said = refused("lower-learning-rate")
    assert "optimizer.init_args.lr is ${rate} in optim/adamw.yaml: change what fills it in" in said


def test_what_two_parts_of_a_tree_say_is_refused() -> None:
    text = "sft:\n  _target_: trl.SFTConfig\n  learning_rate: 0.5\n"
    text += "dpo:\n  _target_: trl.DPOConfig\n  learning_rate: 0.5\n"
    said = refused("lower-learning-rate", write("two.yaml", text))
    assert "learning_rate stands in two places of the tree, sft.learning_rate and dpo.learning_rate" in said


def test_a_file_that_lies_in_two_places_is_refused() -> None:
    write("optim/adamw.yaml", FILES["optim/adamw.yaml"].replace("1.0e-4", "0.5"))
    text = "defaults:\n  - optim@actor.optim: adamw\n  - optim@critic.optim: adamw\n  - trainer: gpu\n"
    said = refused("lower-learning-rate", write("rl.yaml", text))
    assert "critic.optim.lr would change too" in said
