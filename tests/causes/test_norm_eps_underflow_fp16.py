import pytest

from finitune.causes.norm_eps_underflow_fp16 import foresee, weigh
from finitune.facts import Model, Precision, Training
from finitune.finding import Origin

PURE = Precision(compute="float16", parameters="float16")


@pytest.mark.parametrize(
    ("precision", "training", "severity"),
    [
        (PURE, None, "warning"),
        (PURE, Training(framework="transformers"), "info"),
    ],
)
def test_fires_for_an_eps_that_is_zero_in_float16(precision, training, severity):
    (finding,) = foresee(precision, Model(norm_eps=1e-8, path="model"), training)
    assert finding.severity == severity
    assert "1e-08" in finding.message


@pytest.mark.parametrize(
    ("precision", "eps"),
    [
        (PURE, 1e-6),
        (PURE, 1e-5),
        (PURE, None),
        (Precision(compute="bfloat16"), 1e-8),
        (Precision(compute="float16"), 1e-12),
    ],
)
def test_stays_quiet(precision, eps):
    assert not list(foresee(precision, Model(norm_eps=eps)))


def test_weighs_by_the_operator():
    origin = Origin(module="norm", op="aten.rsqrt", phase="forward", dtype="float16")
    assert sum(e.bits for e in weigh(Model(norm_eps=1e-8), origin)) > 0
    assert sum(e.bits for e in weigh(Model(norm_eps=1e-5), origin)) < 0
