import pytest
from hypothesis import given
from hypothesis import strategies as st

from finitune.facts import Facts
from finitune.sources.cases.case import read


def test_settings_in_the_words_of_a_bug_report():
    facts = read({
        "framework": "DeepSpeed ZeRO-2, transformers 4.47.0",
        "model": "Baichuan2-13B-Chat",
        "hardware": "8x Tesla V100 32GB",
        "config": {
            "fp16": True, "lr": "5e-3 -> NaN; 2e-5 -> converges", "deepspeed": "0.12.5", "overlap_comm": "true",
            "per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "optimizer": "8bit adam",
        },
    })  # fmt: skip
    assert facts.precision.compute == "float16"
    assert (facts.optimizer.lr, facts.optimizer.batch, facts.optimizer.accumulation) == (5e-3, 4, 8)
    assert facts.optimizer.name == "adam"
    assert facts.versions == {"deepspeed": "0.12.5", "transformers": "4.47.0"}
    assert (facts.parallel.kind, facts.parallel.zero_stage, facts.parallel.overlap_comm) == ("deepspeed", 2, True)
    assert (facts.model.family, facts.model.dtype) == ("baichuan", "bfloat16")
    assert facts.hardware.name == "V100"


@pytest.mark.parametrize(
    ("config", "compute", "parameters"),
    [
        ({"mixed_precision": "fp16"}, "float16", None),
        ({"precision": 16, "model": "model.half()"}, "float16", "float16"),
        ({"apex_opt_level": "O3 (pure fp16)"}, "float16", "float16"),
        ({"full_bf16": True}, "bfloat16", "bfloat16"),
        ({"bf16": {"enabled": True}}, "bfloat16", None),
        ({"fp16": "perhaps"}, None, None),
    ],
)
def test_precision_in_many_spellings(config, compute, parameters):
    precision = read({"config": config}).precision
    assert (precision.compute, precision.parameters) == (compute, parameters)


def test_the_highest_of_several_rates_counts():
    assert read({"config": {"unet_lr": 5e-5, "text_encoder_lr": 0.005}}).optimizer.lr == 0.005


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12))
KEYS = st.sampled_from([
    "fp16", "lr", "optimizer", "zero_stage", "deepspeed", "dtype", "precision", "overlap_comm", "a_lr",
    "quantization", "lora_r", "apex_opt_level", "padding_side", "batch_size", "load_in_8bit", "bf16", "torch",
    "model_init_kwargs",
])  # fmt: skip


@given(
    st.dictionaries(KEYS, st.one_of(VALUES, st.lists(VALUES, max_size=2), st.dictionaries(KEYS, VALUES, max_size=2)))
)
def test_whatever_is_written_is_never_refused(config):
    assert isinstance(read({"config": config, "framework": None, "model": 3}), Facts)


def test_an_empty_case_says_nothing():
    facts = read({})
    assert facts.versions is None
    assert facts.parallel is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("RTX3090 x2", "RTX 3090"), ("4x A100-SXM4-80GB", "A100"), ("one 4090", "RTX 4090"), ("8 x h800", "H800"),
        ("2080Ti, V100", "RTX 2080 Ti"), ("Tesla V100S-PCIE", "V100"), ("Quadro rtx 8000", "RTX 8000"),
        ("NVIDIA A6000", "RTX A6000"),
        ("Apple M4 Pro", "Apple MPS"), ("gfx1151, ROCm 6.4", "AMD ROCm"), ("MI300X node", "MI300X"),
    ],
)  # fmt: skip
def test_cards_in_the_spelling_of_people(text, name):
    assert read({"hardware": text}).hardware.name == name


@pytest.mark.parametrize("text", ["", "8 GPU", "a laptop", "GPT4 cluster", "A1000 words"])
def test_no_card_is_made_up(text):
    assert read({"hardware": text}).hardware is None


def test_versions_under_other_names_and_in_the_log():
    facts = read({
        "framework": "PyTorch 2.5.0", "log": ["Using transformers version: 4.46.1", "loss 0.0"],
        "config": {"bnb": "0.38.1", "flash_attn": "2.6.1", "deepspeed_version": "0.13.1"},
    })  # fmt: skip
    assert facts.versions == {
        "torch": "2.5.0", "transformers": "4.46.1", "bitsandbytes": "0.38.1", "flash-attn": "2.6.1",
        "deepspeed": "0.13.1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "scaler", "scale"),
    [
        ({"fp16": True, "initial_scale": "2**32"}, "dynamic", 2.0**32),
        ({"fp16.enabled": True, "fp16.initial_scale_power": 4}, "dynamic", 16.0),
        ({"fp16": True, "loss_scale": 128}, "static", 128.0),
        ({"amp": True}, "dynamic", 65536.0),
        ({"dtype": "fp16 / autocast"}, "dynamic", 65536.0),
    ],
)
def test_the_loss_scaler_in_many_spellings(config, scaler, scale):
    precision = read({"config": config}).precision
    assert (precision.compute, precision.scaler, precision.initial_scale) == ("float16", scaler, scale)


def test_two_files_that_give_one_switch_differently():
    (one,) = read({"config": {"ds.fp16.enabled": True, "hf.fp16": False}}).disagreements
    assert one.key == "precision.compute"
    assert list(one.values) == ["float16", "float32"]


@pytest.mark.parametrize(
    ("value", "rate"), [("down to 1e-5", 1e-5), ("5e-3 -> NaN; 2e-5 -> converges", 5e-3), ("see the paper", None)]
)
def test_numbers_inside_words(value, rate):
    assert read({"config": {"lr": value}}).optimizer.lr == rate


def test_an_expression_is_no_number():
    assert read({"config": {"seq_len": "% 128 == 64"}}).batching is None


@pytest.mark.parametrize(
    ("config", "bits"), [({"quantization": "nf4"}, 4), ({"bits": 8}, 8), ({"quantize": "4-bit QLoRA"}, 4), ({}, None)]
)
def test_quantisation_in_many_spellings(config, bits):
    found = read({"config": config}).quantization
    assert (found and found.bits) == bits
