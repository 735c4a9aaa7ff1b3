import pytest
from tests.causes.only import findings

from finitune.causes import deepspeed_version_regression
from finitune.causes.deepspeed_version_regression import weigh
from finitune.facts import Parallel, Precision

foresee = findings(deepspeed_version_regression.foresee)

BRAIN, HALF = Precision(compute="bfloat16"), Precision(compute="float16")


def zero(stage: int, **more) -> Parallel:
    return Parallel(kind="deepspeed", zero_stage=stage, source="ds.json", **more)


@pytest.mark.parametrize(
    ("precision", "parallel", "version", "severity", "fixed_in"),
    [
        (BRAIN, zero(2, overlap_comm=True), "0.12.5", "error", "0.14.3"),
        (HALF, zero(1), "0.13.5", "warning", "0.14.3"),
        (BRAIN, zero(0), "0.18.3", "warning", "0.18.6"),
        (BRAIN, zero(1, grad_accum_dtype="fp32"), "0.18.9", "warning", "0.19.0"),
    ],
)
def test_fires_for_each_release_on_record(precision, parallel, version, severity, fixed_in):
    (finding,) = foresee(precision, parallel, {"deepspeed": version})
    assert finding.severity == severity
    assert finding.evidence["fixed_in"] == fixed_in
    assert finding.where.file == "ds.json"
    assert sum(e.bits for e in weigh(parallel, precision, {"deepspeed": version})) > 0


@pytest.mark.parametrize(
    ("precision", "parallel", "version"),
    [
        (BRAIN, zero(2), "0.12.3"), (BRAIN, zero(2), "0.14.3"), (BRAIN, zero(3), "0.12.5"), (HALF, zero(0), "0.18.3"),
        (BRAIN, zero(2, multi_rank_bucket_allreduce=False), "0.12.5"), (BRAIN, zero(1), "0.18.9"),
        (BRAIN, zero(2), "0.19.8"), (BRAIN, Parallel(kind="fsdp"), "0.12.5"),
    ],
)  # fmt: skip
def test_stays_quiet(precision, parallel, version):
    assert not list(foresee(precision, parallel, {"deepspeed": version}))


def test_stays_quiet_after_a_run_that_fails_on_one_process_too():
    assert sum(e.bits for e in weigh(zero(2), BRAIN, {"deepspeed": "0.12.5"}, repeats=True)) < 0
    assert sum(e.bits for e in weigh(zero(2), BRAIN, {"deepspeed": "0.19.8"})) < 0
