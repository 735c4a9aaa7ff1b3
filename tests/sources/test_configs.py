from pathlib import Path

import pytest
from tests.sources.worlds import one_line, settings

from finitune.finding import UnreadableInput
from finitune.sources.configs import training_arguments
from finitune.sources.configs.format import format_of, formats
from finitune.sources.gather import gather
from finitune.sources.result import Supervision


def facts_of(*configs):
    return gather(*configs).facts


def test_formats_are_found_by_walking_the_folder():
    assert {"deepspeed", "training_arguments"} <= set(formats())
    folder = Path(training_arguments.__file__).parent
    assert all((folder / f"{name}.py").is_file() for name in formats())


def test_training_arguments_as_json(tmp_path):
    file = settings(
        tmp_path / "args.json", fp16=True, learning_rate=2e-5, adam_epsilon=1e-8, adam_beta1=0.9, adam_beta2=0.95,
        max_grad_norm=1.0, warmup_ratio=0.03, per_device_train_batch_size=4, optim="adamw_torch", output_dir="o",
    )  # fmt: skip
    facts = facts_of(file)
    assert facts.precision.compute == "float16"
    assert facts.precision.scaler == "dynamic"
    assert facts.precision.initial_scale == 65536
    assert facts.precision.source == f"{file}: fp16"
    assert facts.optimizer.lr == 2e-5
    assert facts.optimizer.betas == [0.9, 0.95]
    assert facts.optimizer.batch == 4
    assert facts.optimizer.lora is None


def test_yaml_spells_small_numbers_in_a_way_that_its_own_reader_takes_for_text(tmp_path):
    (tmp_path / "args.yaml").write_text("bf16: true\nlearning_rate: 2e-5\nuse_peft: true\nwarmup_steps: 10\n")
    facts = facts_of(tmp_path / "args.yaml")
    assert facts.optimizer.lr == 2e-5
    assert facts.optimizer.lora is True
    assert facts.optimizer.warmup_steps == 10
    assert facts.precision.compute == "bfloat16"
    assert facts.precision.scaler == "none"


@pytest.mark.parametrize(
    ("values", "compute", "parameters"),
    [
        ({"fp16": False, "bf16": False}, "float32", None),
        ({"output_dir": "o"}, None, None),
        ({"torch_dtype": "float16"}, "float16", "float16"),
        ({"dtype": "torch.bfloat16"}, "bfloat16", "bfloat16"),
        ({"bf16": True, "model_init_kwargs": {"torch_dtype": "float16"}}, "bfloat16", "float16"),
        ({"bf16": True, "dtype": "auto"}, "bfloat16", None),
        ({"fp16": "true"}, "float16", None),
    ],
)
def test_precision_that_a_trainer_is_told(tmp_path, values, compute, parameters):
    precision = facts_of(settings(tmp_path / "a.json", **values)).precision
    assert (precision.compute if precision else None) == compute
    assert (precision.parameters if precision else None) == parameters


@pytest.mark.parametrize(("warmup", "steps", "ratio"), [(100, 100, None), (0.1, None, 0.1), (0, 0, None)])
def test_warmup_below_one_is_a_fraction(tmp_path, warmup, steps, ratio):
    optimizer = facts_of(settings(tmp_path / "a.json", warmup_steps=warmup)).optimizer
    assert (optimizer.warmup_steps, optimizer.warmup_ratio) == (steps, ratio)


def test_deepspeed_with_its_defaults(tmp_path):
    file = settings(
        tmp_path / "ds.json", fp16={"enabled": True}, zero_optimization={"stage": 2}, gradient_clipping=1.0,
        optimizer={"type": "AdamW", "params": {"lr": 1e-5, "eps": 1e-8, "betas": [0.9, 0.999], "weight_decay": "auto"}},
        scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 3e-5, "warmup_num_steps": "auto"}},
        train_micro_batch_size_per_gpu=2,
    )  # fmt: skip
    facts = facts_of(file)
    assert facts.precision.compute == "float16"
    assert (facts.precision.initial_scale, facts.precision.hysteresis, facts.precision.min_scale) == (65536, 2, 1)
    assert facts.optimizer.lr == 3e-5
    assert facts.optimizer.weight_decay is None
    assert facts.optimizer.clip == 1
    assert facts.optimizer.batch == 2


def test_a_static_loss_scale(tmp_path):
    precision = facts_of(settings(tmp_path / "ds.json", fp16={"enabled": True, "loss_scale": 128})).precision
    assert (precision.scaler, precision.initial_scale) == ("static", 128)


def test_auto_is_filled_from_the_trainer_and_a_scaler_needs_float16(tmp_path):
    engine = settings(
        tmp_path / "ds.json", fp16={"enabled": "auto", "initial_scale_power": 8}, bf16={"enabled": "auto"},
        optimizer={"type": "AdamW", "params": {"lr": "auto"}}, train_micro_batch_size_per_gpu="auto",
    )  # fmt: skip
    half = settings(tmp_path / "half.json", fp16=True, learning_rate=1e-5, per_device_train_batch_size=3)
    facts = facts_of(engine, half)
    assert facts.precision.compute == "float16"
    assert facts.precision.initial_scale == 256
    assert facts.optimizer.lr == 1e-5
    assert facts.optimizer.batch == 3
    assert facts.optimizer.name == "AdamW"
    assert facts.optimizer.source == str(half)
    assert facts.precision.source == f"{half}: fp16"
    brain = facts_of(engine, settings(tmp_path / "brain.json", bf16=True)).precision
    assert brain.compute == "bfloat16"
    assert brain.initial_scale is None
    assert brain.scaler == "none"


@pytest.mark.parametrize("engine_first", [True, False])
def test_where_two_disagree_the_engine_wins_in_either_order(tmp_path, engine_first):
    engine = settings(tmp_path / "ds.json", fp16={"enabled": True})
    trainer = settings(tmp_path / "a.json", bf16=True)
    configs = (engine, trainer) if engine_first else (trainer, engine)
    assert facts_of(*configs).precision.compute == "float16"


def test_a_deepspeed_file_that_the_arguments_name_is_read_from_beside_them(tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    settings(tmp_path / "ds.json", fp16={"enabled": True})
    args = settings(tmp_path / "a.json", learning_rate=1e-5, deepspeed="ds.json")
    assert facts_of(args).precision.compute == "float16"
    inline = settings(tmp_path / "b.json", learning_rate=1e-5, deepspeed={"bf16": {"enabled": True}})
    assert facts_of(inline).precision.compute == "bfloat16"


def test_arguments_that_name_themselves_end(tmp_path):
    assert facts_of(settings(tmp_path / "a.json", fp16=True, deepspeed=str(tmp_path / "a.json"))).precision


def test_a_named_file_that_is_not_there_is_said_and_the_rest_is_read(tmp_path):
    path = settings(tmp_path / "a.json", fp16=True, deepspeed="none_of_this_name.json")
    reading = gather(path, gpu="A100")
    assert reading.facts.precision.compute == "float16"
    assert reading.not_checked[0].why == f"{path} names none_of_this_name.json, which is not here"
    assert reading.not_checked[0].given


def test_settings_that_a_program_has_by_name_are_said_to_be_left_out():
    reading = gather({"fp16": True, "deepspeed": "zero2"}, gpu="A100")
    why = "the settings given: deepspeed: zero2 is a name that only the program knows, taken for ZeRO-2"
    assert reading.not_checked[0].why == why
    assert reading.facts.parallel.zero_stage == 2
    assert "taken for" not in gather({"fp16": True, "deepspeed": "fast"}, gpu="A100").not_checked[0].why


def test_settings_may_be_given_as_a_mapping():
    assert facts_of({"fp16": True}).precision.compute == "float16"


def test_how_rows_become_labels():
    said = {"max_seq_length": 512, "completion_only_loss": True, "packing": False}
    supervision = training_arguments.supervision
    assert supervision(said, "a.json") == Supervision(max_length=512, completion_only=True, packing=False)
    assert supervision({"max_length": None, "output_dir": "o"}, "a.json") == Supervision()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not JSON"),
        ("[1]", "expected named settings"),
        ("just text", "expected named settings"),
        ("", "expected named settings"),
        ("a: [1", "neither JSON nor YAML"),
        ("a: 1\n b: 2", "neither JSON nor YAML"),
        ("!!python/object/apply:os.system ['true']", "neither JSON nor YAML"),
        ('{"colour": "blue"}', "not a configuration that is known here"),
        ('{"fp16": "maybe"}', "fp16: 'maybe' (expected true or false)"),
        ('{"learning_rate": "fast"}', "learning_rate: 'fast' (expected a number)"),
        ('{"learning_rate": NaN}', "expected a number"),
        ('{"learning_rate": true}', "expected a number"),
        ('{"learning_rate": [1]}', "expected a number"),
        ('{"per_device_train_batch_size": 1.5}', "expected a whole number"),
        ('{"fp16": {"enabled": 3}}', "fp16: enabled: 3 (expected true or false)"),
        ("#!/bin/bash\ndeepspeed main.py --x 1", "no command that launches a trainer"),
        ("a: 1\n\0", "line 2: neither JSON nor YAML (control characters are not allowed)"),
        ("[" * 100_000, "not JSON (nested too deeply)"),
    ],
)
def test_a_config_that_cannot_be_used_is_one_line(tmp_path, text, expected):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(UnreadableInput) as caught:
        gather(path)
    assert expected in one_line(caught.value)
    assert str(path) in str(caught.value)


def test_a_config_that_is_not_there_or_no_text(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "absent.json", tmp_path, tmp_path / "bytes"):
        with pytest.raises(UnreadableInput) as caught:
            gather(path)
        assert str(path) in one_line(caught.value)


@pytest.mark.parametrize(
    ("other", "framework"),
    [
        ({"base_model": "x", "micro_batch_size": 2, "fp16": True}, "axolotl"),
        ({"input_features": [], "learning_rate": 1}, "ludwig"),
        ({"mixed_precision": "fp16"}, "accelerate"),
        ({"finetuning_type": "lora", "learning_rate": 1}, "llamafactory"),
    ],
)
def test_files_of_other_trainers_are_not_taken_for_training_arguments(other, framework):
    assert format_of(other).name == framework
    assert [one.name for one in formats().values() if one.recognises(other)] == [framework]


@pytest.mark.parametrize(
    ("total", "processes", "said"),
    [
        (64, 4, ["64", "4 x 2 x 4 = 32"]),
        (32, 4, None),
        (32, None, None),
        (36, None, ["36", "4 x 2 x the devices"]),
    ],
)
def test_the_batch_of_deepspeed_is_a_product(tmp_path, total, processes, said):
    settings(tmp_path / "ds.json", train_batch_size=total, train_micro_batch_size_per_gpu=4, bf16={"enabled": True})
    launcher = f"--num_gpus={processes}" if processes else ""
    script = tmp_path / "run.sh"
    script.write_text(f"deepspeed {launcher} t.py --deepspeed ds.json --gradient_accumulation_steps 2 --bf16\n")
    facts = gather(script).facts
    assert [list(one.values) for one in facts.disagreements] == ([said] if said else [])
