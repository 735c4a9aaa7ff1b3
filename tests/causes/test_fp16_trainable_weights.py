import pytest

from finitune.causes.fp16_trainable_weights import foresee, weigh
from finitune.facts import Adapter, Optimizer, Parallel, Precision

LOADED = Precision(compute="float16", parameters="float16", scaler="dynamic", source="a.json: fp16")


@pytest.mark.parametrize(
    ("optimizer", "severity"), [(Optimizer(lora=False), "error"), (Optimizer(), "warning"), (None, "warning")]
)
def test_fires_by_what_is_known_to_be_trained(optimizer, severity):
    (finding,) = foresee(LOADED, optimizer)
    assert finding.severity == severity
    assert finding.where.key == "fp16"
    assert "unscale" in finding.message


def test_fires_when_full_fine_tuning_is_said_in_so_many_words():
    (finding,) = foresee(LOADED, adapter=Adapter(kind="none"))
    assert finding.severity == "error"


@pytest.mark.parametrize(
    ("precision", "more"),
    [
        (Precision(compute="float16", parameters="float32", scaler="dynamic"), {}),
        (Precision(compute="float16", scaler="dynamic"), {}),
        (Precision(compute="float16", parameters="float16", scaler="none"), {}),
        (Precision(compute="bfloat16", parameters="bfloat16", scaler="none"), {}),
        (LOADED, {"optimizer": Optimizer(lora=True)}),
        (LOADED, {"adapter": Adapter(kind="lora")}),
        (LOADED, {"parallel": Parallel(kind="deepspeed", zero_stage=2)}),
        (Precision(compute="float16", parameters="float16", scaler="dynamic", source="ds.json: fp16.enabled"), {}),
    ],
)
def test_stays_quiet(precision, more):
    assert not list(foresee(precision, **more))


def test_stays_quiet_after_a_run_with_float32_weights():
    assert sum(e.bits for e in weigh(Precision(parameters="float32"), {"nonfinite-loss"})) < 0
