import pytest
from hypothesis import given
from hypothesis import strategies as st

from finitune.facts import Facts
from finitune.sources.case import read


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


def test_token_ids_and_rows():
    facts = read({"config": {"embedding_rows": 32000, "max_input_id": 32002}})
    assert facts.model.vocabulary == 32000
    assert facts.tokens.ids.tolist() == [32002]


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12))
KEYS = st.sampled_from([
    "fp16", "lr", "optimizer", "zero_stage", "deepspeed", "dtype", "precision", "max_input_id", "overlap_comm", "a_lr",
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
