"""Configurations of further projects: what is understood of each, that sound ones are quiet and faults are seen."""

from pathlib import Path
from typing import Any

import pytest
from tests.sources import dialects

from finitune.finding import UnreadableInput
from finitune.preflight import check
from finitune.sources.configs.interpolation import filled
from finitune.sources.gather import gather

ALL = {**dialects.SCRIPTS, **dialects.FILES}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write("model/llama.yaml", dialects.HYDRA_MODEL)
    write("optimizer/adamw.yaml", dialects.HYDRA_OPTIMIZER)


def write(name: str, text: str) -> str:
    """The text as lines that begin with the first; the name of the file."""
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(text.lstrip())
    return name


def causes(name: str, text: str) -> set[str]:
    return {finding.cause for finding in check(write(name, text)).findings}


@pytest.mark.parametrize("name", ALL)
def test_stays_quiet_sound_files_have_no_error_and_at_most_one_warning(name: str) -> None:
    result = check(write(name, ALL[name]))
    assert result.verdict != "broken"
    assert sum(finding.severity == "warning" for finding in result.findings) <= 1, result.findings


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("torchtune.yaml", "torchtune.yaml as torchtune: bf16, LoRA of rank 8, lr 3e-4, clipping at 1"),
        ("hydra.yaml", "hydra.yaml as Lightning, by Hydra: bf16, lr 1e-4, clipping at 1"),
        ("verl.sh", "verl.sh as verl: bf16, lr 1e-6, clipping at 1"),
        ("verl_sft.sh", "verl_sft.sh as verl: /models/qwen, LoRA of rank 32, lr 1e-4, clipping at 1"),
        (
            "openrlhf.sh",
            "openrlhf.sh as OpenRLHF: /models/llama, bf16, weights in fp32, lr 5e-6, clipping at 1, ZeRO-2",
        ),
        ("megatron.sh", "megatron.sh as Megatron: bf16, weights in fp32, lr 6e-5, clipping at 1"),
        ("nemo.yaml", "nemo.yaml as NeMo: bf16, weights in fp32, LoRA of rank 32, lr 5e-6, clipping at 1"),
        ("swift.sh", "swift.sh as ms-swift: /models/qwen, bf16, LoRA of rank 8, lr 1e-4, clipping at 1"),
        ("unsloth.sh", "unsloth.sh as python unsloth-cli.py: /models/llama-3-8b, 4-bit, LoRA of rank 64, lr 2e-6"),
    ],
)
def test_the_first_line_says_what_was_understood(name: str, said: str) -> None:
    assert gather(write(name, ALL[name])).understood[0].partition(";")[0] == said


def test_the_weights_of_verl_are_float32_unless_it_says_otherwise() -> None:
    """The whole model is then trained in bfloat16, at a rate at which nearly every update rounds away."""
    assert "bf16-update-stagnation" in causes("verl.sh", ALL["verl.sh"])
    text = ALL["verl.sh"].replace("model_dtype=bfloat16", "model_dtype=fp32")
    assert "bf16-update-stagnation" not in causes("verl.sh", text)


@pytest.mark.parametrize(
    ("name", "old", "new", "cause"),
    [
        ("hydra.yaml", "gradient_clip_val: 1.0", "gradient_clip_val: null", "missing-gradient-clipping"),
        ("torchtune.yaml", "lr: 3e-4", "lr: 0.3", "lr-too-high"),
        ("hydra.yaml", "gradient_clip_val: 1.0", "gradient_clip_val: 0.0", "missing-gradient-clipping"),
        ("verl.sh", "rollout.n=5", "rollout.n=1", "rl-group-std-zero"),
        ("verl.sh", "optim.lr=1e-6", "optim.lr=1e-1", "lr-too-high"),
        ("verl_sft.sh", "optim.lr=1e-4", "optim.lr=1e-1", "lr-too-high"),
        ("openrlhf.sh", "LR=5e-6", "LR=5e-1", "lr-too-high"),
        ("megatron.sh", "--lr 6.0e-5", "--lr 0.6", "lr-too-high"),
        ("nemo.yaml", "lr: 5e-6", "lr: 0.5", "lr-too-high"),
        ("swift.sh", "--learning_rate 1e-4", "--learning_rate 1e-1", "lr-too-high"),
        ("unsloth.sh", "--learning_rate 2e-6", "--learning_rate 2e-1", "lr-too-high"),
    ],
)
def test_fires_for_a_planted_fault(name: str, old: str, new: str, cause: str) -> None:
    assert old in ALL[name]
    assert cause not in causes(name, ALL[name])
    text = ALL[name].lstrip().replace(old, new)
    (found,) = [finding for finding in check(write(name, text)).findings if finding.cause == cause]
    if name in dialects.SCRIPTS:
        place = "--learning_rate $LR" if name == "openrlhf.sh" else new
        assert found.where.line == text[: text.index(place)].count("\n") + 1


@pytest.mark.parametrize(
    ("old", "new", "file", "line"),
    [
        ("gradient_clip_val: 1.0", "gradient_clip_val: 0.0", "hydra.yaml", "gradient_clip_val: 0.0"),
        ("precision: bf16-mixed", "precision: 16-true", "optimizer/adamw.yaml", "eps: 1e-8"),  # zero in float16
    ],
)
def test_findings_of_hydra_have_the_file_and_the_line_of_the_value(old: str, new: str, file: str, line: str) -> None:
    text = dialects.HYDRA.lstrip().replace(old, new)
    assert old in dialects.HYDRA
    places = {(one.where.file, one.where.line) for one in check(write("hydra.yaml", text)).findings}
    text = Path(file).read_text()
    assert (file, text[: text.index(line)].count("\n") + 1) in places


def test_users_5_float16_weights_under_a_scaler_are_seen_through_hydra() -> None:
    """trial-2/configs/hydra2.yaml: fp16 weights and 16-mixed gave `ok: nothing found`."""
    write("model/llama.yaml", "_target_: transformers.AutoModelForCausalLM.from_pretrained\ntorch_dtype: float16\n")
    assert "fp16-trainable-weights" in causes("hydra.yaml", dialects.HYDRA.replace("bf16-mixed", "16-mixed"))


def test_users_4_one_interpolation_refuses_nothing_else() -> None:
    found = gather(write("hydra.yaml", dialects.HYDRA))
    optimizer = found.facts.optimizer
    assert optimizer is not None
    assert (optimizer.lr, optimizer.clip, optimizer.batch, optimizer.max_steps) == (1e-4, 1.0, 8, 10000)
    assert optimizer.accumulation is None
    whys = "; ".join(one.why for one in found.not_checked)
    assert "trainer.accumulate_grad_batches (${eval:'2*2'} is filled in when it runs)" in whys
    assert "steps (" not in whys.replace("accumulate_grad_batches", "")


def test_files_of_defaults_that_are_not_here_are_named() -> None:
    Path("model/llama.yaml").unlink()
    result = check(write("hydra.yaml", dialects.HYDRA))
    assert any("names model/llama.yaml, which is not here" in one.why for one in result.not_checked)
    assert result.verdict == "incomplete"


def test_values_of_the_file_win_over_those_of_its_defaults() -> None:
    optimizer = gather(write("hydra.yaml", f"{dialects.HYDRA}optimizer:\n  lr: 7e-5\n")).facts.optimizer
    assert optimizer is not None
    assert optimizer.lr == 7e-5


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"a": "${b.c}", "b": {"c": 3}}, 3),
        ({"a": "x-${b}-${d}", "b": 1, "d": "y"}, "x-1-y"),
        ({"a": "${oc.env:N,1e-4}"}, 1e-4),
        ({"a": "${oc.env:N}"}, "${oc.env:N}"),
        ({"a": "${nowhere}"}, "${nowhere}"),
        ({"a": "${a}"}, "${a}"),
        ({"a": "${b}", "b": "${c}", "c": 5}, 5),
        ({"a": "${now:%Y}"}, "${now:%Y}"),
        ({"a": "${b}", "b": {"c": 1}}, "${b}"),
    ],
)
def test_interpolation(data: dict[str, Any], expected: Any) -> None:
    assert filled(data)["a"] == expected


@pytest.mark.parametrize("times", [2, 500])
def test_interpolation_does_not_grow_without_end(times: int) -> None:
    growing = {f"k{i}": f"${{k{i + 1}}}" * times for i in range(60)} | {"k60": "x"}
    assert len(str(filled(growing))) < 20_000_000
    many = {"a": "x" * 9_000} | {f"k{i}": "-${a}" for i in range(50_000)}
    assert len(str(filled(many))) < 50_000_000


def test_stays_quiet_one_answer_for_each_prompt_is_normal_for_ppo() -> None:
    text = dialects.VERL.replace("rollout.n=5", "rollout.n=1").replace("adv_estimator=grpo", "adv_estimator=gae")
    assert "rl-group-std-zero" not in causes("verl.sh", text)


def test_megatron_has_a_loss_scale_of_its_own() -> None:
    text = dialects.MEGATRON.replace("--bf16", "--fp16 --initial-loss-scale 65536 --hysteresis 2")
    precision = gather(write("megatron.sh", text)).facts.precision
    assert precision is not None
    assert (precision.compute, precision.scaler) == ("float16", "dynamic")
    assert (precision.initial_scale, precision.hysteresis) == (65536, 2)


def test_here_documents_that_nobody_reads_into_a_variable_are_left_out() -> None:
    text = "cat <<EOF > x\npython t.py --learning_rate 9\nEOF\npython t.py --learning_rate 1e-5 --bf16\n"
    optimizer = gather(write("x.sh", text)).facts.optimizer
    assert optimizer is not None
    assert optimizer.lr == 1e-5


@pytest.mark.parametrize(
    ("name", "stage", "offload"), [("zero1", 1, "none"), ("zero2", 2, "none"), ("zero3_offload", 3, "cpu")]
)
def test_stages_that_ms_swift_has_by_name(tmp_path, name, stage, offload):
    path = tmp_path / "swift.sh"
    path.write_text(dialects.SWIFT.replace("--lora_rank", f"--deepspeed {name} --lora_rank"))
    reading = gather(path, gpu="A100")
    assert reading.facts.parallel.zero_stage == stage
    assert reading.facts.parallel.offload_optimizer == offload
    assert not any("deepspeed" in one.why for one in reading.not_checked if one.input == "config")


RECIPE = "tune run lora_finetune_single_device --config x.yaml \\\n    optimizer.lr={rate} epochs=3\n"


@pytest.mark.parametrize("given", [("run.sh",), ("x.yaml", "run.sh"), ("run.sh", "x.yaml")])
def test_a_finding_stands_where_the_value_that_counts_is_written(given):
    write("x.yaml", dialects.TORCHTUNE.replace("3e-4", "2.0"))
    write("run.sh", "#!/bin/bash\n" + RECIPE.format(rate="2"))
    found = {one.cause: one.where for one in check(*given, gpu="A100").findings}
    assert (found["lr-too-high"].file, found["lr-too-high"].line) == ("run.sh", 3)
    write("run.sh", "#!/bin/bash\n" + RECIPE.format(rate="2").replace(" optimizer.lr=2", ""))
    found = {one.cause: one.where for one in check(*given, gpu="A100").findings}
    assert found["lr-too-high"].file == "x.yaml"
    write("run.sh", "#!/bin/bash\n" + RECIPE.format(rate="2e-4"))
    assert not check(*given, gpu="A100").findings


OVERRIDES = (
    "#!/bin/bash\npython src/train.py experiment=one model.lr={lr} \\\n    trainer.precision={precision} {more}\n"
)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"lr": "3", "precision": "32"}, [("lr-too-high", 2)]),
        ({"lr": "1e-4", "precision": "16-true"}, [("adam-eps-underflow-fp16", 3)]),
        ({"lr": "1e-4", "precision": "16-mixed", "more": "trainer.gradient_clip_val=0"},
         [("missing-gradient-clipping", 3)]),
        ({"lr": "1e-4", "precision": "bf16-mixed", "more": "data.batch_size=8"}, []),
        ({"lr": "0.1", "precision": "16-mixed", "more": "optimizer=sgd optimizer.momentum=0.9"}, []),
        ({"lr": "0.1", "precision": "32", "more": "optimizer._target_=torch.optim.AdamW"}, [("lr-too-high", 2)]),
    ],
)  # fmt: skip
def test_overrides_of_a_program_that_is_not_here(said, expected):
    write("run.sh", OVERRIDES.format(**{"more": "", **said}))
    result = check("run.sh", gpu="A100")
    assert [(one.cause, one.where.line) for one in result.findings] == expected
    assert any("src/train.py, which is not here" in one.why for one in result.not_checked)


@pytest.mark.parametrize("command", ["python train.py model.name=a data.dir=b", "python prepare.py data.rows=3"])
def test_overrides_that_say_nothing_here_are_no_training(command):
    write("run.sh", f"#!/bin/bash\n{command}\n")
    with pytest.raises(UnreadableInput, match="no command that launches a trainer"):
        check("run.sh")


def test_an_open_value_is_said_once_and_under_the_key_of_the_file() -> None:
    text = "trainer: {_target_: lightning.Trainer, precision: 16-mixed}\n"
    text += "optim: {_target_: torch.optim.AdamW, lr: '${LR}'}\n"
    whys = [one.why for one in gather(write("h.yaml", text)).not_checked if one.input == "config"]
    assert whys == ["h.yaml: optim.lr (${LR} is filled in when it runs)"]
