import pytest
from tests.causes.only import findings

from finitune.causes import low_precision_grad_reduce
from finitune.causes.low_precision_grad_reduce import weigh
from finitune.facts import Optimizer, Parallel, Precision

foresee = findings(low_precision_grad_reduce.foresee)

BRAIN = Precision(compute="bfloat16")


def zero(**more) -> Parallel:
    return Parallel(**{"kind": "deepspeed", "zero_stage": 2, "source": "ds.json", **more})


@pytest.mark.parametrize(
    ("parallel", "steps", "severity", "key"),
    [
        (zero(), 64, "info", "data_types.grad_accum_dtype"),
        (zero(grad_accum_dtype="bfloat16"), 256, "warning", "data_types.grad_accum_dtype"),
        (zero(communication_dtype="bfloat16", world=256), 1, "warning", "communication_data_type"),
    ],
)
def test_fires_for_many_addends(parallel, steps, severity, key):
    (finding,) = foresee(BRAIN, parallel, Optimizer(accumulation=steps))
    assert finding.severity == severity
    assert finding.remedy.patch == {key: "fp32"}


@pytest.mark.parametrize(
    ("precision", "parallel", "steps"),
    [
        (BRAIN, zero(), 16),
        (BRAIN, zero(grad_accum_dtype="float32"), 256),
        (BRAIN, zero(world=256), 1),
        (Precision(compute="float16"), zero(), 256),
        (BRAIN, Parallel(kind="fsdp"), 256),
        (BRAIN, zero(zero_stage=0), 256),
    ],
)
def test_stays_quiet(precision, parallel, steps):
    assert not list(foresee(precision, parallel, Optimizer(accumulation=steps)))


def test_weighs_against_float32():
    assert sum(e.bits for e in weigh(BRAIN, zero(grad_accum_dtype="float32"), set())) < 0
