"""Launches that stand in another shell's words, and what is typed over a file of torchtune."""

from __future__ import annotations

from pathlib import Path

import pytest

import finitune
from finitune.finding import UnreadableInput
from finitune.sources.gather import gather

RECIPE = """\
model:
  _component_: torchtune.models.llama3.lora_llama3_8b
  lora_rank: 8
optimizer:
  _component_: torch.optim.AdamW
  fused: true
  lr: 3e-4
batch_size: 2
dtype: bf16
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def script(text: str) -> str:
    Path("run.sh").write_text(text)
    return "run.sh"


@pytest.mark.parametrize("shell", ["bash -c", "/bin/bash -lc", "sh -c", "srun --label bash -c"])
@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_launch_in_the_words_of_a_shell(shell: str, quote: str) -> None:
    path = script(
        "#!/bin/bash\n#SBATCH --gres=gpu:tesla_v100:4\nmodule load cuda\n"
        f"{shell} {quote}cd x && torchrun --nnodes $N run.py \\\n  --bf16 --learning_rate 2e-5 --output_dir o{quote}\n"
    )
    reading = gather(path)
    assert reading.facts.optimizer is not None
    assert reading.facts.optimizer.lr == 2e-5
    assert reading.facts.hardware is not None
    assert reading.facts.hardware.name.lower().endswith("v100")
    assert reading.places[path]["learning_rate"] == (None, 5)


def test_a_patch_stays_inside_the_quotes() -> None:
    path = script("srun bash -c 'torchrun run.py --fp16 --learning_rate 2 --output_dir o'\n")
    finitune.repair("lower-learning-rate", config=[path], apply=True)
    assert Path(path).read_text() == "srun bash -c 'torchrun run.py --fp16 --learning_rate 2e-5 --output_dir o'\n"


@pytest.mark.parametrize(
    "text", ["bash -c\n", "bash -c 'echo hello'\n", "bash -c $CMD\n", "sh -c 'sh -c \"sh -c true\"'\n", "bash -c ''\n"]
)
def test_stays_quiet_where_nothing_is_launched(text: str) -> None:
    with pytest.raises(UnreadableInput, match="no command that launches"):
        gather(script(f"#!/bin/bash\n{text}"))


def test_what_is_typed_over_a_recipe_counts() -> None:
    Path("r.yaml").write_text(RECIPE)
    launch = "tune run --nproc_per_node 2 lora_finetune_distributed --config r.yaml optimizer.lr=3e-2 dtype=fp16\n"
    facts = gather(script(launch)).facts
    assert facts.optimizer is not None
    assert (facts.optimizer.lr, facts.optimizer.name, facts.optimizer.batch) == (0.03, "adamw", 2)
    assert facts.precision is not None
    assert facts.precision.parameters == "float16"


def test_a_recipe_of_torchtune_s_own_is_said() -> None:
    reading = gather(script("tune run full_finetune_single_device --config llama3/8B_full optimizer.lr=3e-3\n"))
    assert reading.facts.optimizer is not None
    assert reading.facts.optimizer.lr == 3e-3
    assert any("llama3/8B_full comes with torchtune" in one.why for one in reading.not_checked)


def test_fires_for_an_adapter_that_torchtune_holds_in_float16() -> None:
    Path("r.yaml").write_text(RECIPE.replace("bf16", "fp16"))
    (found,) = [one for one in finitune.check("r.yaml").findings if one.cause == "adam-eps-underflow-fp16"]
    assert found.message.startswith("weights of the adapter are trained in float16")
    assert found.remedy is not None
    assert found.remedy.name == "use-float32"


@pytest.mark.parametrize(("estimator", "fires"), [("group_norm", True), ("gae", False)])
def test_groups_of_one_in_openrlhf(estimator: str, fires: bool) -> None:
    path = script(
        "python3 -m openrlhf.cli.train_ppo_ray --pretrain a/b --actor_learning_rate 5e-7 --bf16 "
        f"--micro_train_batch_size 8 --n_samples_per_prompt 1 --advantage_estimator {estimator}\n"
    )
    assert ("rl-group-std-zero" in {one.cause for one in finitune.check(path).findings}) is fires


def test_the_parameters_of_verl_s_actor() -> None:
    path = script(
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=a/b algorithm.adv_estimator=gae "
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=float16\n"
    )
    precision = gather(path).facts.precision
    assert precision is not None
    assert precision.compute == "float16"
