import pytest

from finitune.diagnosis.observed_settings import of_facts, of_names
from finitune.facts import Facts, Hardware, Optimizer
from finitune.observations import meanings
from finitune.sources.cases import case


def seen(**written):
    return {*of_facts(case.read(written)), *of_names(written)}


def test_settings_become_observations():
    found = seen(framework="DeepSpeed ZeRO-2", config={"fp16": True, "learning_rate": 1e-8})
    assert {"computes-float16", "zero-2", "deepspeed", "tiny-learning-rate"} <= found
    assert "computes-bfloat16" not in found


def test_nothing_is_observed_of_nothing():
    assert of_facts(Facts()) == of_names({}) == {}


@pytest.mark.parametrize(("lr", "found"), [(9e-7, True), (1e-6, False), (2e-5, False)])
def test_a_learning_rate_at_which_nothing_moves(lr, found):
    assert ("tiny-learning-rate" in of_facts(Facts(optimizer=Optimizer(lr=lr)))) is found


@pytest.mark.parametrize(("bfloat16", "found"), [(False, True), (True, False)])
def test_a_card_without_bfloat16(bfloat16, found):
    assert ("no-bfloat16-card" in of_facts(Facts(hardware=Hardware(name="a card", bfloat16=bfloat16)))) is found


def test_every_setting_that_is_observed_is_in_the_table():
    found = seen(
        framework="PyTorch ROCm DeepSpeed ZeRO-2", model="Mixtral-8x7B", hardware="V100",
        config={"bf16": True, "gradient_accumulation_steps": 4, "load_in_8bit": True, "overlap_comm": True},
    )  # fmt: skip
    assert found <= {name for name, one in meanings().items() if "settings" in one.seen_in}
