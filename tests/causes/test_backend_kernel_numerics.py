import pytest

from finitune.causes.backend_kernel_numerics import foresee, weigh
from finitune.facts import Hardware


@pytest.mark.parametrize("name", ["Apple MPS", "AMD ROCm"])
def test_fires_as_information_on_backends_that_are_less_tested(name):
    (finding,) = foresee(Hardware(name=name, bfloat16=True))
    assert finding.severity == "info"
    assert name in finding.message


@pytest.mark.parametrize("name", ["A100", "V100", "MI300X", "RTX 4090"])
def test_stays_quiet(name):
    assert not list(foresee(Hardware(name=name, bfloat16=True)))


def test_weighs_by_the_device():
    assert sum(e.bits for e in weigh(Hardware(name="Apple MPS", bfloat16=True), False)) > 0
    assert sum(e.bits for e in weigh(Hardware(name="A100", bfloat16=True))) < 0
