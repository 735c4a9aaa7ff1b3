import numpy as np
import pytest

from finitune.causes.loss_scale_exhaustion import foresee, weigh
from finitune.facts import Adapter, Precision
from finitune.series import Series


def scaler(**more) -> Precision:
    return Precision(**{"compute": "float16", "scaler": "dynamic", "initial_scale": 65536.0, "min_scale": 1.0, **more})


@pytest.mark.parametrize(
    ("precision", "key", "said"),
    [
        (scaler(initial_scale=16.0, hysteresis=2), "fp16.initial_scale_power", "6 overflows"),
        (scaler(min_scale=0.0), "fp16.min_loss_scale", "learns nothing"),
        (scaler(scale_window=4), "fp16.loss_scale_window", "1 step in 5"),
        (scaler(scaler="static", initial_scale=1.0), "fp16.loss_scale", "fixed at 1"),
    ],
)
def test_fires_where_the_scale_has_no_room(precision, key, said):
    (finding,) = foresee(precision)
    assert finding.severity == ("info" if key == "fp16.min_loss_scale" else "warning")
    assert finding.where.key == key
    assert said in finding.message
    assert finding.remedy.patch


@pytest.mark.parametrize(
    "precision",
    [
        scaler(), scaler(initial_scale=2.0**32), scaler(scale_window=100), scaler(initial_scale=4096.0),
        scaler(scaler="static", initial_scale=128.0), scaler(scaler="static", initial_scale=1024.0),
        scaler(initial_scale=None, min_scale=None), Precision(compute="bfloat16", scaler="none"),
        Precision(compute="float16", scaler="none", parameters="float16"), Precision(compute="float16"),
        Precision(compute="float16", scaler="none", cpu=True, requested_by="torch"),
        Precision(compute="float16", scaler="none", requested_by="ludwig"),
    ],
)  # fmt: skip
def test_stays_quiet(precision):
    assert not list(foresee(precision))


@pytest.mark.parametrize(("kind", "severity"), [("none", "warning"), (None, "warning"), ("lora", "info")])
def test_fires_where_nothing_scales(kind, severity):
    precision = Precision(
        compute="float16", scaler="none", parameters="float32", source="a.yaml: bits", requested_by="llama-factory"
    )
    (finding,) = foresee(precision, Adapter(kind=kind) if kind else None)
    assert finding.severity == severity
    assert "below 6e-08 become 0" in finding.message
    assert finding.where.key == "bits"
    assert finding.remedy.patch == {"fp16": True}


def test_weighs_against_a_scale_with_room():
    scales = Series(steps=np.arange(3), values=np.array([4.0, 2.0, 1.0]))
    assert sum(e.bits for e in weigh(scaler(initial_scale=16.0), scales)) > 0
    assert sum(e.bits for e in weigh(scaler(scale_window=1000), scales)) < 0
    assert not list(weigh(scaler(), scales)), "the window was not told"
