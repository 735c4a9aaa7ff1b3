import pytest

from finitune.causes.bf16_emulated_hardware import foresee, weigh
from finitune.facts import Hardware, Precision

V100 = Hardware(name="V100", bfloat16=False)
BRAIN = Precision(compute="bfloat16", source="a.json: bf16")


def test_fires_on_a_card_without_bfloat16():
    (finding,) = foresee(BRAIN, V100)
    assert finding.severity == "warning"
    assert (finding.where.file, finding.where.key) == ("a.json", "bf16")
    assert "V100" in finding.message
    assert sum(e.bits for e in weigh(BRAIN, V100, set())) > 0


@pytest.mark.parametrize(
    ("precision", "hardware"),
    [
        (BRAIN, Hardware(name="A100", bfloat16=True)),
        (Precision(compute="float16"), V100),
        (Precision(), V100),
        (Precision(compute="bfloat16", cpu=True), V100),
    ],
)
def test_stays_quiet(precision, hardware):
    assert not list(foresee(precision, hardware))


def test_stays_quiet_after_a_run_in_a_dtype_that_the_card_has():
    assert sum(e.bits for e in weigh(Precision(compute="float16"), V100, set())) < 0
