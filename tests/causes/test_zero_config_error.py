import pytest
from tests.causes.only import findings

from finitune.causes import zero_config_error
from finitune.causes.zero_config_error import weigh
from finitune.facts import Parallel, Precision

foresee = findings(zero_config_error.foresee)

BRAIN = Precision(compute="bfloat16")


def zero(stage: int, **more) -> Parallel:
    return Parallel(kind="deepspeed", zero_stage=stage, source="ds.json", **more)


@pytest.mark.parametrize(
    ("parallel", "key"),
    [
        (zero(2, offload_parameters="cpu"), "zero_optimization.offload_param"),
        (zero(0, offload_optimizer="cpu"), "zero_optimization.offload_optimizer"),
        (zero(2, communication_dtype="fp16"), "communication_dtype"),
    ],
)
def test_fires_for_settings_that_the_stage_does_not_read(parallel, key):
    (finding,) = foresee(BRAIN, parallel)
    assert finding.severity == "warning"
    assert (finding.where.file, finding.where.key) == ("ds.json", key)


@pytest.mark.parametrize(
    "parallel",
    [
        zero(3, offload_parameters="cpu", offload_optimizer="cpu"), zero(2, offload_optimizer="cpu"), zero(2),
        zero(2, offload_parameters="none"), zero(2, communication_dtype="fp32"), Parallel(kind="fsdp"),
    ],
)  # fmt: skip
def test_stays_quiet(parallel):
    assert not list(foresee(BRAIN, parallel))


def test_fires_after_a_run_only_where_gradients_are_sent_narrower():
    assert sum(e.bits for e in weigh(zero(2, communication_dtype="fp16"), BRAIN)) > 0
    assert sum(e.bits for e in weigh(zero(2, communication_dtype="fp16"), BRAIN, repeats=True)) < 0
    assert sum(e.bits for e in weigh(zero(2, communication_dtype="bf16"), BRAIN)) < 0
    assert not list(weigh(zero(2), BRAIN)), "nobody said so"
