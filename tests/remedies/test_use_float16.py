import pytest

from finitune.facts import Hardware, Model, Precision, Training
from finitune.remedies.use_float16 import propose

T4 = Hardware(name="T4", bfloat16=False)


@pytest.mark.parametrize(
    ("source", "patch"),
    [
        ("ds.json: bf16.enabled", {"bf16.enabled": False, "fp16.enabled": True}),
        ("a.json: bf16", {"bf16": False, "fp16": True}),
    ],
)
def test_fires_in_the_spelling_of_the_file(source, patch):
    assert propose(Precision(compute="bfloat16", source=source), T4).patch == patch


def test_stays_quiet_for_a_family_that_overflows_there():
    assert propose(Precision(compute="bfloat16"), T4, Model(family="gemma2")) is None


def test_stays_quiet_on_a_card_that_has_bfloat16():
    assert propose(Precision(compute="bfloat16"), Hardware(name="A100", bfloat16=True)) is None


def test_stays_quiet_where_weights_would_be_float16_without_a_loss_scale():
    assert propose(Precision(compute="bfloat16"), T4, training=Training(framework="torchtune")) is None
