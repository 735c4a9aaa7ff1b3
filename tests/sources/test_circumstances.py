import pytest

from finitune.facts import Facts
from finitune.sources.cases import case, circumstances


def seen(**told):
    return set(circumstances.read(case.read(told), told))


def test_settings_become_circumstances():
    found = seen(framework="DeepSpeed ZeRO-2", config={"fp16": True, "learning_rate": 1e-8})
    assert {"computes-float16", "zero-2", "deepspeed", "tiny-rate"} <= found
    assert "computes-bfloat16" not in found


@pytest.mark.parametrize(
    ("lines", "slug"),
    [
        (["{'loss': 0.0, 'grad_norm': nan}"], "hidden-loss"),
        (["{'loss': 2.1, 'grad_norm': nan}"], "gradient-first"),
        (["{'loss': 0.0, 'grad_norm': 0.0}"], "zero-loss-zero-gradient"),
        (["{'loss': 0.0, 'grad_norm': 1.4142135}"], "sentinel-norm"),
        (["{'eval_loss': nan}"], "eval-loss-nan"),
        ([f"loss: {x}" for x in (2.0, 1.0, 3.0, 9.0)], "climbed"),
        (["loss: 60.5"], "first-loss-huge"),
    ],
)
def test_printed_numbers_become_circumstances(lines, slug):
    assert slug in circumstances.KNOWN
    assert slug in seen(log=lines)


def test_a_sound_log_says_nothing():
    assert seen(log=["{'loss': 2.1, 'grad_norm': 0.7}", "{'loss': 1.9, 'grad_norm': 0.6}"]) == set()
    assert circumstances.read(Facts(), {}) == {}


def test_every_circumstance_that_is_read_is_known():
    found = seen(
        framework="PyTorch ROCm DeepSpeed ZeRO-2", model="Mixtral-8x7B", hardware="V100",
        config={"bf16": True, "gradient_accumulation_steps": 4}, log=["{'loss': 0.0, 'grad_norm': nan}"],
    )  # fmt: skip
    assert found <= circumstances.KNOWN
