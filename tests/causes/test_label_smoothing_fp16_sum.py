import pytest
from tests.causes.only import findings

from finitune.causes import label_smoothing_fp16_sum
from finitune.causes.label_smoothing_fp16_sum import weigh
from finitune.facts import Parallel, Precision, Training
from finitune.finding import Origin

foresee = findings(label_smoothing_fp16_sum.foresee)

WHOLE = Precision(compute="float16", full_eval="float16")
SMOOTH = Training(label_smoothing=0.1, source="args.json")


@pytest.mark.parametrize("versions", [None, {"transformers": "4.4.2"}])
def test_fires_for_a_sum_in_float16(versions):
    (finding,) = foresee(WHOLE, SMOOTH, None, versions)
    assert finding.severity == "warning"
    assert finding.where.key == "label_smoothing_factor"


def test_fires_for_an_engine_in_float16():
    assert list(foresee(Precision(compute="float16"), SMOOTH, Parallel(kind="deepspeed")))


@pytest.mark.parametrize(
    ("precision", "training", "versions"),
    [
        (WHOLE, Training(), None),
        (WHOLE, Training(label_smoothing=0.0), None),
        (WHOLE, SMOOTH, {"transformers": "4.57.0"}),
        (Precision(compute="float16"), SMOOTH, None),
        (Precision(compute="bfloat16", full_eval="bfloat16"), SMOOTH, None),
    ],
)
def test_stays_quiet(precision, training, versions):
    assert not list(foresee(precision, training, None, versions))


def test_weighs_by_the_operator():
    origin = Origin(module=None, op="aten.sum", phase="forward", dtype="float16")
    assert sum(e.bits for e in weigh(SMOOTH, origin)) > 0
    assert sum(e.bits for e in weigh(Training(label_smoothing=0.0), origin)) < 0
    assert not list(weigh(Training(), origin)), "nobody said so"
