import numpy as np
import pytest

from finitune.causes.normal_scaler_warmup import foresee, weigh
from finitune.facts import Precision
from finitune.finding import Origin
from finitune.series import Series


def dynamic(scale: float) -> Precision:
    return Precision(
        compute="float16", scaler="dynamic", initial_scale=scale, hysteresis=2, source="ds.json: fp16.enabled"
    )


def series(*values: float) -> Series:
    return Series(steps=np.arange(len(values)), values=np.array(values, float))


def test_fires_with_the_number_of_steps_that_a_high_start_costs():
    (finding,) = foresee(dynamic(2.0**32))
    assert finding.severity == "info"
    assert finding.evidence["skipped_steps"] == 17
    assert (finding.where.file, finding.where.key) == ("ds.json", "initial_scale_power")


@pytest.mark.parametrize(
    "precision",
    [
        dynamic(65536.0), Precision(compute="bfloat16"), Precision(compute="float16"),
        Precision(compute="float16", scaler="static", initial_scale=2.0**32),
    ],
)  # fmt: skip
def test_stays_quiet(precision):
    assert not list(foresee(precision))


def test_stays_quiet_after_a_run_whose_scale_collapsed_or_whose_forward_failed():
    backward = Origin(module="a", op="aten.mm", phase="backward", dtype="float16")
    forward = Origin(module="a", op="aten.mm", phase="forward", dtype="float16")
    assert sum(e.bits for e in weigh(series(65536, 32768), backward)) > 0
    assert sum(e.bits for e in weigh(series(65536, 1), backward)) < 0
    assert sum(e.bits for e in weigh(series(65536), forward)) < 0
