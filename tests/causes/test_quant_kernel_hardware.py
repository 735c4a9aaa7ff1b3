import pytest

from finitune.causes.quant_kernel_hardware import foresee, weigh
from finitune.facts import Hardware, Quantization

V100 = Hardware(name="V100", bfloat16=False)
EIGHT = Quantization(bits=8, kind="int8", source="a.json: load_in_8bit")


@pytest.mark.parametrize("name", ["V100", "Tesla V100-SXM2-32GB", "P100"])
def test_fires_on_cards_without_eight_bit_units(name):
    (finding,) = foresee(Hardware(name=name, bfloat16=False), EIGHT)
    assert finding.severity == "warning"
    assert finding.where.key == "load_in_8bit"
    assert sum(e.bits for e in weigh(EIGHT, V100)) > 0


@pytest.mark.parametrize(
    ("hardware", "quantization"),
    [
        (Hardware(name="T4", bfloat16=False), EIGHT), (Hardware(name="A100", bfloat16=True), EIGHT),
        (V100, Quantization(bits=4, kind="nf4")), (V100, Quantization(bits=8, kind="gptq")),
    ],
)  # fmt: skip
def test_stays_quiet(hardware, quantization):
    assert not list(foresee(hardware, quantization))


def test_stays_quiet_after_a_run_on_another_card():
    assert sum(e.bits for e in weigh(EIGHT, Hardware(name="A100", bfloat16=True))) < 0
