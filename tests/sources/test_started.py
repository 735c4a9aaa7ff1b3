"""A script and the program that it starts are one run: what is typed wins, and findings have their place."""

import textwrap
from pathlib import Path

import pytest

from finitune.finding import UnreadableInput
from finitune.preflight import check
from finitune.sources.gather import gather

PROGRAM = """
    import argparse, torch
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", "-l", type=float, default=2e-5)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--fp16", action="store_true")
    args = parser.parse_args()
    training_args = TrainingArguments(
        output_dir="out",
        learning_rate=args.lr,
        max_grad_norm=args.clip,
        fp16=args.fp16,
        per_device_train_batch_size=4,
    )
    Trainer(model=model, args=training_args).train()
"""
DATACLASSES = """
    from dataclasses import dataclass, field
    from transformers import AutoModelForCausalLM, HfArgumentParser, Trainer, TrainingArguments

    @dataclass
    class ModelArguments:
        model_name_or_path: str = field(default="gpt2")
        attn: str = field(default="eager")

    @dataclass
    class OurArguments(TrainingArguments):
        bf16: bool = field(default=True)
        learning_rate: float = field(default=1e-5)
        max_grad_norm: float = field(default=0.7)

    parser = HfArgumentParser((ModelArguments, OurArguments))
    model_args, training_args = parser.parse_args_into_dataclasses()
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, attn_implementation=model_args.attn)
    Trainer(model=model, args=training_args).train()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(textwrap.dedent(text).lstrip())
    return name


@pytest.mark.parametrize(
    "launch",
    [
        "python train.py",
        "python3 -u train.py",
        "python -m train",
        "./train.py",
        "torchrun --nproc_per_node=8 train.py",
        "python -m torch.distributed.run --nproc_per_node 8 train.py",
        "accelerate launch --num_processes 8 train.py",
        "deepspeed --num_gpus 8 train.py",
        "uv run train.py",
        "uv run --with peft python train.py",
        "uv run accelerate launch train.py",
        "uv run --with trl --extra deepspeed accelerate launch --num_processes 8 train.py",
        "srun --gpus=4 python -u train.py",
        "CUDA_VISIBLE_DEVICES=0 nohup python train.py",
    ],
)
def test_fires_for_every_way_to_start_a_program(here: Path, launch: str) -> None:
    write("train.py", PROGRAM)
    facts = gather(write("launch.sh", f"#!/bin/bash\nLR=3e-3\n{launch} --lr $LR --fp16 > log 2>&1\n")).facts
    assert facts.optimizer is not None
    assert (facts.optimizer.lr, facts.optimizer.clip, facts.optimizer.batch) == (3e-3, 1.0, 4)
    assert facts.precision is not None
    assert facts.precision.compute == "float16"
    assert facts.training is not None
    assert facts.training.framework == "transformers"


def test_stays_quiet_without_flags_the_defaults_count(here: Path) -> None:
    write("train.py", PROGRAM)
    reading = gather(write("launch.sh", "python train.py\n"))
    assert reading.facts.optimizer is not None
    assert reading.facts.optimizer.lr == 2e-5
    assert reading.facts.precision is None or reading.facts.precision.compute != "float16"
    assert not reading.facts.disagreements
    assert [line.partition(":")[0] for line in reading.understood[:-1]] == [
        "launch.sh as python train.py", "train.py, started by launch.sh, as transformers Trainer",
    ]  # fmt: skip


def test_a_finding_has_the_place_that_says_it(here: Path) -> None:
    write("train.py", PROGRAM.replace("default=1.0", "default=0.0"))
    result = check(write("launch.sh", "#!/bin/bash\npython train.py \\\n  --fp16 \\\n  --lr 0.3\n"))
    found = {one.cause: (one.where.file, one.where.line, one.where.key) for one in result.findings}
    assert found["lr-too-high"] == ("launch.sh", 4, "learning_rate")
    assert found["missing-gradient-clipping"] == ("train.py", 6, "max_grad_norm")


def test_dataclasses_take_what_is_typed_over_their_defaults(here: Path) -> None:
    write("src/train.py", DATACLASSES)
    script = write(
        "launch.sh",
        "cd src\ntorchrun train.py --bf16 False --fp16 --learning_rate 3e-5 --model_name_or_path x/y --attn sdpa\n",
    )
    facts = gather(script).facts
    assert facts.precision is not None
    assert facts.precision.compute == "float16"
    assert facts.optimizer is not None
    assert (facts.optimizer.lr, facts.optimizer.clip) == (3e-5, 0.7)
    assert facts.training is not None
    assert facts.training.model_name == "x/y"
    assert facts.attention is not None
    assert facts.attention.implementation == "sdpa"
    assert facts.disagreements == []


def test_a_file_of_arguments_counts_as_typed(here: Path) -> None:
    write("train.py", DATACLASSES)
    write("args.yaml", "bf16: false\nfp16: true\nlearning_rate: 4.0e-5\n")
    facts = gather(write("launch.sh", "accelerate launch train.py args.yaml\n")).facts
    assert facts.precision is not None
    assert facts.precision.compute == "float16"
    assert facts.optimizer is not None
    assert (facts.optimizer.lr, facts.optimizer.clip) == (4e-5, 0.7)
    assert facts.disagreements == []


def test_flags_mean_what_the_program_makes_of_them(here: Path) -> None:
    """A loop of its own that multiplies the rate: the flag is no rate of transformers, and nothing disagrees."""
    write(
        "train.py",
        """
        import argparse, torch
        parser = argparse.ArgumentParser()
        parser.add_argument("--learning_rate", type=float, default=1.0)
        parser.add_argument("--no_amp", dest="amp", action="store_false")
        args = parser.parse_args()
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate * 1e-4)
        with torch.autocast("cuda", dtype=torch.float16, enabled=args.amp):
            loss = model(x)
        loss.backward()
        optimizer.step()
        """,
    )
    facts = gather(write("run.sh", "python train.py --learning_rate 2 --max_grad_norm 3 --no_amp\n")).facts
    assert facts.optimizer is not None
    assert facts.optimizer.lr == pytest.approx(2e-4)
    assert facts.optimizer.clip != 3
    assert facts.training is not None
    assert facts.training.framework == "torch"
    assert not facts.disagreements


def test_fire_and_click_give_functions_what_is_typed(here: Path) -> None:
    body = "TrainingArguments('o', learning_rate=learning_rate, fp16=fp16)\n"
    write(
        "fire_it.py",
        f"import fire\nfrom transformers import TrainingArguments\n"
        f"def train(learning_rate: float = 1e-5, fp16=False):\n    {body}fire.Fire(train)\n",
    )
    write(
        "click_it.py",
        "import click\nfrom transformers import TrainingArguments\n@click.command()\n"
        "@click.option('--learning-rate', default=1e-5)\n@click.option('--fp16', is_flag=True)\n"
        f"def train(learning_rate, fp16):\n    {body}train()\n",
    )
    for program in ("fire_it.py", "click_it.py"):
        facts = gather(write("run.sh", f"python {program} --learning-rate=7e-4 --fp16\n")).facts
        assert facts.optimizer is not None
        assert facts.optimizer.lr == 7e-4, program
        assert facts.precision is not None
        assert facts.precision.compute == "float16"


def test_programs_that_do_not_train_are_no_runs(here: Path) -> None:
    write("prepare.py", "import json\nprint(json.dumps({}))\n")
    write("train.py", PROGRAM)
    facts = gather(write("all.sh", "python prepare.py --lr 9 --out data\npython train.py --lr 3e-3\n")).facts
    assert facts.optimizer is not None
    assert facts.optimizer.lr == 3e-3


def test_a_folder_is_one_run_of_its_script_and_program(here: Path) -> None:
    write("train.py", PROGRAM)
    write("launch.sh", "python train.py --lr 3e-3\n")
    result = check(".")
    assert result.understood[0].startswith(".: 1 training among 2")
    assert "train.py, started by launch.sh," in result.understood[2]
    together = check("launch.sh", "train.py")
    assert together.understood[-2].startswith("train.py, started by launch.sh,")
    assert "config-disagreement" not in {one.cause for one in together.findings}


@pytest.mark.parametrize(
    ("line", "card", "world"),
    [
        ("#SBATCH --gpus-per-node=v100:8", "V100", 8),
        ("#SBATCH --gres=gpu:a100:4", "A100", 4),
        ("#SBATCH -G h100:2", "H100", 2),
        ("#SBATCH --gpus=nvidia_a100-sxm4-80gb:4", "A100", 4),
    ],
)
def test_the_scheduler_is_asked_for_a_card(here: Path, line: str, card: str, world: int) -> None:
    write("train.py", PROGRAM)
    script = write("job.sbatch", f"#!/bin/bash\n{line}\nsrun torchrun --nproc_per_node=$GPUS train.py --fp16\n")
    reading = gather(script)
    assert reading.facts.hardware is not None
    assert reading.facts.hardware.name == card
    assert reading.facts.parallel is not None
    assert reading.facts.parallel.world == world
    assert f"{world} x " in reading.understood[0]
    assert "(line 2)" in reading.understood[0]
    assert "gpu" not in {one.input for one in reading.not_checked}
    given = gather(script, gpu="T4")
    assert given.facts.hardware is not None
    assert given.facts.hardware.name == "T4"


@pytest.mark.parametrize("line", ["#SBATCH --gres=gpu:4", "#SBATCH --gpus-per-node=8", "## --gpus=v100:8", ""])
def test_stays_quiet_where_no_card_is_named(here: Path, line: str) -> None:
    write("train.py", PROGRAM)
    reading = gather(write("job.sbatch", f"#!/bin/bash\n{line}\ntorchrun train.py --fp16\n"))
    assert reading.facts.hardware is None
    assert {one.input: one.why for one in reading.not_checked}["gpu"] == "no --gpu given"


def test_an_unknown_card_is_said(here: Path) -> None:
    write("train.py", PROGRAM)
    reading = gather(write("job.sbatch", "#!/bin/bash\n#SBATCH --gpus=mi8:2\ntorchrun train.py --fp16\n"))
    assert "job.sbatch: line 2 asks for mi8" in {one.input: one.why for one in reading.not_checked}["gpu"]


def test_a_program_that_is_not_here_is_said(here: Path) -> None:
    whys = {
        one.input: one.why for one in gather(write("a.sh", "python t.py --fp16\npython -m verl.x --bf16")).not_checked
    }
    assert whys["program"] == "a.sh starts t.py, which is not here"
    with pytest.raises(UnreadableInput, match=r"a.sh: no command .*t.py, which it starts, is not here"):
        gather(write("a.sh", "uv run accelerate launch t.py --amp\n"))


def test_a_program_above_a_script_is_found_in_a_project_only(here: Path) -> None:
    write("a/scripts/run.sh", "python train.py --fp16 --lr 3e-3\n")
    write("a/train.py", PROGRAM)
    script = str(here / "a" / "scripts" / "run.sh")
    assert "program" in {one.input for one in gather(script).not_checked}
    write("a/requirements.txt", "")
    reading = gather(script)
    assert reading.facts.optimizer is not None
    assert reading.facts.optimizer.lr == 3e-3


def test_a_flag_that_the_program_does_not_declare_is_never_added(here: Path) -> None:
    write("train.py", PROGRAM)
    result = check(write("launch.sh", "python train.py --fp16 --lr 0.3 --clip 0\n"))
    commands = {one.cause: one.remedy.command for one in result.findings if one.remedy}
    assert commands["missing-gradient-clipping"] is None  # --max_grad_norm would end the run: it is --clip here
    assert "lower-learning-rate" in (commands["lr-too-high"] or "")
