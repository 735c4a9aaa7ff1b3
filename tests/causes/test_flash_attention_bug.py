import pytest
from tests.causes.only import findings

from finitune.causes import flash_attention_bug
from finitune.causes.flash_attention_bug import weigh
from finitune.facts import Attention, Hardware, Model, Training
from finitune.finding import Origin

foresee = findings(flash_attention_bug.foresee)

FLASH, GEMMA = Attention(implementation="flash_attention_2", source="args.json"), Model(family="gemma2")
XFORMERS = Attention(implementation="xformers")


@pytest.mark.parametrize(
    ("versions", "attention", "model", "hardware", "severity"),
    [
        ({"flash-attn": "2.6.1"}, FLASH, GEMMA, None, "error"),
        ({"flash-attn": "2.5.8"}, FLASH, GEMMA, None, "warning"),
        ({"flash-attn": "2.0.4"}, FLASH, Model(family="llama"), None, "info"),
        ({"xformers": "0.0.16"}, XFORMERS, None, Hardware(name="RTX 3090", bfloat16=True), "warning"),
    ],
)
def test_fires_for_a_release_on_record(versions, attention, model, hardware, severity):
    (finding,) = foresee(attention, versions, model, None, hardware)
    assert finding.severity == severity
    assert finding.evidence["fixed_in"] in finding.message


def test_fires_for_the_name_of_the_model():
    (finding,) = foresee(FLASH, {"flash-attn": "2.6.0"}, None, Training(model_name="google/gemma-2-9b-it"))
    assert finding.severity == "error"


@pytest.mark.parametrize(
    ("versions", "attention", "model", "hardware"),
    [
        ({"flash-attn": "2.6.3"}, FLASH, GEMMA, None),
        ({"flash-attn": "2.6.1"}, FLASH, Model(family="llama"), None),
        ({"flash-attn": "2.6.1"}, Attention(implementation="eager"), GEMMA, None),
        ({"flash-attn": "2.6.1"}, FLASH, Model(family="gemma3"), None),
        ({}, FLASH, GEMMA, None),
        ({"xformers": "0.0.16"}, XFORMERS, None, Hardware(name="A100", bfloat16=True)),
        ({"xformers": "0.0.20"}, XFORMERS, None, None),
    ],
)
def test_stays_quiet(versions, attention, model, hardware):
    assert not list(foresee(attention, versions, model, None, hardware))


def test_weighs_by_the_operator():
    flash = Origin(module=None, op="aten._flash_attention_backward", phase="backward", dtype="bfloat16")
    other = Origin(module=None, op="aten.mm", phase="backward", dtype="bfloat16")
    assert sum(e.bits for e in weigh(flash, FLASH)) > 0
    assert sum(e.bits for e in weigh(other, FLASH)) < 0
