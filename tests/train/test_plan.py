"""The plan: a pure function of settings and facts, without torch."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.test_settings import YI, config

from finitune.cli.main import main
from finitune.facts import Facts, Hardware, Model, TensorScan, TokenUse, Vocabulary, Weights
from finitune.sources import hardware
from finitune.train.plan import Plan, plan
from finitune.train.prepared import prepare
from finitune.train.settings import read

V100, A100 = hardware.read("V100"), hardware.read("A100")
IDS = np.arange(10)
FACTS = Facts(tokens=TokenUse(ids=IDS, counts=IDS + 1, first=IDS, sequences=800))


def planned(folder: Path, text: str = "", facts: Facts = FACTS, card: Hardware | None = None, **more: Any) -> Plan:
    return plan(read(config(folder, text)), facts, card=card, **more)


def values(found: Plan) -> dict[str, Any]:
    return {**found.settings(), **found.beside()}


@pytest.mark.parametrize(
    ("text", "card", "expected"),
    [
        ("", V100, {"fp16": True, "bf16": False, "dtype": "float32", "loss_scale": "dynamic, from 65536"}),
        ("", A100, {"fp16": False, "bf16": True, "dtype": "float32"}),
        ("", None, {"fp16": False, "bf16": False, "dtype": "float32", "use_cpu": True}),
        ("use_peft: true", V100, {"fp16": True, "dtype": "float16"}),
        ("use_peft: true", A100, {"bf16": True, "dtype": "bfloat16"}),
        ("use_peft: true\nload_in_4bit: true", V100, {"fp16": True, "dtype": "float32"}),
        ("use_peft: true\nload_in_4bit: true", A100, {"bf16": True, "dtype": "bfloat16"}),
    ],
)
def test_precision_follows_the_hardware(tmp_path: Path, text: str, card: Any, expected: dict[str, Any]) -> None:
    found = values(planned(tmp_path, text, card=card))
    assert {key: found[key] for key in expected} == expected
    assert ("loss_scale" in found) == bool(found["fp16"])


def test_a_base_that_float16_cannot_hold_stays_in_float32(tmp_path: Path) -> None:
    large = TensorScan(name="a.weight", dtype="float32", shape=[2, 2], nonfinite=0, peak=1e6, rms=1.0, overflow=1)
    facts = dataclasses.replace(FACTS, weights=Weights(tensors=[large]))
    assert values(planned(tmp_path, "use_peft: true", facts, V100))["dtype"] == "float32"


def test_float16_that_was_written_for_a_cpu_is_kept_and_said(tmp_path: Path) -> None:
    found = planned(tmp_path, "fp16: true")
    assert values(found)["fp16"] is True
    assert "loss_scale" not in values(found)
    assert [one.cause for one in found.findings] == ["precision-request-ignored"]


def test_every_choice_has_a_reason_and_what_the_user_wrote_is_kept(tmp_path: Path) -> None:
    text = "learning_rate: 3.0e-1\nmax_grad_norm: 0.0\nwarmup_steps: 0\nbf16: true"
    found = planned(tmp_path, text, card=V100)
    kept = {one.key: one.value for one in found.choices if one.by == "you"}
    assert {"learning_rate": 0.3, "max_grad_norm": 0.0, "warmup_steps": 0, "bf16": True}.items() <= kept.items()
    assert all(one.why for one in found.choices)
    assert len({one.key for one in found.choices}) == len(found.choices)
    assert {"lr-too-high", "bf16-emulated-hardware"} <= {one.cause for one in found.findings}, "said, and not replaced"


def test_what_was_chosen_leaves_check_nothing_to_say(tmp_path: Path) -> None:
    for card in (None, V100, A100):
        for text in ("", "use_peft: true"):
            assert planned(tmp_path, text, card=card).findings == []


def test_steps_come_from_the_data_and_warm_up_from_the_steps(tmp_path: Path) -> None:
    assert planned(tmp_path).steps == 300
    assert planned(tmp_path, world=2).steps == 150
    assert planned(tmp_path, "max_steps: 7").steps == 7
    assert planned(tmp_path, "gradient_accumulation_steps: 4\nnum_train_epochs: 1").steps == 25
    assert values(planned(tmp_path))["warmup_steps"] == 30
    assert values(planned(tmp_path, "adam_beta2: 0.9"))["warmup_steps"] == 20, "2 / (1 - beta2)"
    assert "warmup_steps" not in values(planned(tmp_path, facts=Facts())), "an unknown number of steps"
    assert "adam_epsilon" not in values(planned(tmp_path, "optim: sgd"))


def test_rows_are_cut_where_the_model_ends_and_padded_on_the_right(tmp_path: Path) -> None:
    words = Vocabulary(size=10, eos_id=2, spare_pad={"<pad>": 7})
    facts = dataclasses.replace(FACTS, model=Model(max_positions=256), vocabulary=words)
    found = values(planned(tmp_path, facts=facts))
    assert (found["max_length"], found["padding_side"], found["pad_token"]) == (256, "right", "<pad>")
    assert values(planned(tmp_path, "max_length: 64", facts=facts))["max_length"] == 64


def test_the_loss_is_of_the_answer_where_rows_have_one(tmp_path: Path) -> None:
    assert values(planned(tmp_path, form="answers"))["completion_only_loss"] is True
    assert "completion_only_loss" not in values(planned(tmp_path, form="text"))
    assert values(planned(tmp_path, form="conversations"))["assistant_only_loss"] is False


def test_rows_that_were_never_trained_are_planned_anew_and_said_where_they_are_not(tmp_path: Path) -> None:
    found = prepare(config(tmp_path, "finitune: {gpu: V100}"), trains=False).plan
    assert list(found.tokens) == [6, 7]
    assert found.findings == []
    left = prepare(config(tmp_path, "finitune: {gpu: V100, repair_tokens: false}"), trains=False).plan
    assert left.tokens == []
    assert "untrained-token-embeddings" in {one.cause for one in left.findings}


def test_a_module_that_overflows_computes_in_float32(tmp_path: Path) -> None:
    home = YI.parent / "unsloth"
    paths = {"model_name_or_path": home / "model", "dataset_name": home / "train.jsonl"}
    found = prepare(config(tmp_path, "finitune: {gpu: V100}", **paths), trains=False).plan
    assert found.beside()["float32_modules"] == ["model.layers.2.mlp"]
    assert (
        "float32_modules" not in prepare(config(tmp_path, "finitune: {gpu: A100}", **paths), trains=False).plan.beside()
    )


def test_the_plan_is_printed_and_trains_nothing(tmp_path: Path, capsys: Any) -> None:
    file = config(tmp_path, "finitune: {gpu: V100}")
    assert main(["train", "--plan", str(file)]) == 0
    text = capsys.readouterr().out
    assert "on V100: 90 steps; nothing is trained" in text
    assert all(len(line) <= 100 for line in text.splitlines() if str(tmp_path) not in line and str(YI) not in line)
    assert main(["train", "--plan", "--json", str(file)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "finitune.plan/1"
    assert {"key": "fp16", "value": True}.items() <= next(
        one for one in found["choices"] if one["key"] == "fp16"
    ).items()
    assert not (tmp_path / "out").exists()


def test_planning_loads_no_trainer(tmp_path: Path) -> None:
    code = f"from finitune.cli.main import main; import sys; main(['train', '--plan', {str(config(tmp_path))!r}]);"
    code += "sys.exit(any(name in sys.modules for name in ('transformers', 'trl', 'peft')))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=240).returncode == 0


def test_init_writes_what_train_reads_and_overwrites_nothing(tmp_path: Path, capsys: Any) -> None:
    words = [
        "init",
        "--model",
        str(YI / "model"),
        "--data",
        str(YI / "train.jsonl"),
        "--output",
        str(tmp_path / "t.yaml"),
    ]
    assert main(words) == 0
    assert main(["train", "--plan", str(tmp_path / "t.yaml")]) == 0
    before = (tmp_path / "t.yaml").read_bytes()
    assert main(words) == 2
    assert "already there" in capsys.readouterr().err
    assert (tmp_path / "t.yaml").read_bytes() == before


def test_init_refuses_what_is_no_model_and_what_are_no_data(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "data.jsonl").write_text("")
    output = ["--output", str(tmp_path / "t.yaml")]
    assert main(["init", "--model", str(tmp_path), "--data", str(YI / "train.jsonl"), *output]) == 2
    assert main(["init", "--model", str(YI / "model"), "--data", str(tmp_path / "data.jsonl"), *output]) == 2
    assert not (tmp_path / "t.yaml").exists()
    said = capsys.readouterr().err
    assert "no config.json here" in said
    assert "no rows" in said


def test_a_launch_file_is_a_script_that_bash_reads(tmp_path: Path, capsys: Any) -> None:
    home = tmp_path / "a folder; with 'signs'"
    home.mkdir()
    file = config(home)
    words = ["train", str(file), "--launch-file", str(tmp_path / "job.sh"), "--nodes", "3", "--gpus", "4"]
    assert main(words) == 0
    assert "was not tried" in capsys.readouterr().out
    text = (tmp_path / "job.sh").read_text()
    assert "#SBATCH --nodes=3" in text
    assert "--nproc-per-node 4" in text
    assert main(words) == 2
    assert not (home / "out").exists()


def test_a_launch_file_starts_each_node_with_its_number(tmp_path: Path) -> None:
    """By hand, with a torchrun that prints what it was given."""
    file = config(tmp_path)
    assert main(["train", str(file), "--launch-file", str(tmp_path / "job.sh")]) == 0
    (tmp_path / "torchrun").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "torchrun").chmod(0o755)
    around = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HEAD": "first", "NODE": "1"}
    done = subprocess.run(["bash", tmp_path / "job.sh"], env=around, capture_output=True, text=True, check=True)
    expected = (
        f"--nnodes 2 --nproc-per-node 8 --node-rank 1 --master-addr first --master-port 29500 -m finitune train {file}"
    )
    assert done.stdout.strip() == expected
    del around["NODE"]
    assert subprocess.run(["bash", tmp_path / "job.sh"], env=around, capture_output=True, check=False).returncode
