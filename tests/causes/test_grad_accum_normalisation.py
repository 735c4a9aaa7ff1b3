import pytest
from tests.causes.only import findings

from finitune.causes import grad_accum_normalisation
from finitune.causes.grad_accum_normalisation import weigh
from finitune.facts import Optimizer

foresee = findings(grad_accum_normalisation.foresee)


@pytest.mark.parametrize(
    ("version", "severity"),
    [("4.46.0", "warning"), ("4.47.1", "warning"), ("4.48.2", "warning"), ("4.49.0", "info"), ("4.50.3", "info")],
)
def test_fires_by_release(version, severity):
    (finding,) = foresee(Optimizer(accumulation=8, source="a.yaml"), {"transformers": version})
    assert finding.severity == severity
    assert finding.evidence["accumulation"] == 8
    assert finding.where.key == "gradient_accumulation_steps"


@pytest.mark.parametrize(
    ("accumulation", "version"), [(8, "4.45.2"), (8, "4.51.0"), (8, "5.23.0"), (1, "4.47.0"), (None, "4.47.0")]
)
def test_stays_quiet(accumulation, version):
    assert not list(foresee(Optimizer(accumulation=accumulation), {"transformers": version}))


def test_stays_quiet_after_a_non_finite_step():
    assert sum(e.bits for e in weigh(Optimizer(accumulation=8), {"transformers": "4.47.0"}, {"nonfinite-loss"})) < 0
    assert sum(e.bits for e in weigh(Optimizer(accumulation=1), {"transformers": "4.47.0"}, set())) < 0
