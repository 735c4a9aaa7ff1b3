import pytest

from finitune.causes.fp16_backward_overflow import foresee, weigh
from finitune.facts import Precision
from finitune.finding import Origin


def half(**more) -> Precision:
    return Precision(compute="float16", source="ds.json: fp16.enabled", **more)


@pytest.mark.parametrize(
    ("precision", "severity", "key"),
    [
        (half(scaler="static", initial_scale=65536.0), "warning", "loss_scale"),
        (half(scaler="dynamic", initial_scale=65536.0, min_scale=4096.0), "warning", "min_loss_scale"),
    ],
)
def test_fires_by_setting(precision, severity, key):
    (finding,) = foresee(precision)
    assert finding.severity == severity
    assert (finding.where.file, finding.where.key) == ("ds.json", key)


@pytest.mark.parametrize(
    "precision",
    [
        half(scaler="dynamic", initial_scale=65536.0, min_scale=1.0), half(scaler="static", initial_scale=1024.0),
        half(scaler="dynamic", initial_scale=2.0**32), half(), Precision(compute="bfloat16"),
    ],
)  # fmt: skip
def test_stays_quiet(precision):
    assert not list(foresee(precision))


def test_fires_after_a_run_only_for_the_backward_in_float16():
    backward = Origin(module="a", op="aten.mm", phase="backward", dtype="float16")
    forward = Origin(module="a", op="aten.mm", phase="forward", dtype="float16")
    assert sum(e.bits for e in weigh(backward)) > 0
    assert sum(e.bits for e in weigh(forward)) < 0


def test_what_goes_in_beyond_float16_decides():
    cast = {"module": "", "op": "aten._to_copy", "phase": "backward", "dtype": "float16"}
    beyond, within = ([e.bits for e in weigh(Origin(**cast, peak=peak))] for peak in (2.3e6, 100.0))
    assert sum(beyond) > sum(within)
