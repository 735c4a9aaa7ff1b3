import pytest
from tests.causes.only import findings

from finitune.causes import missing_nonfinite_guard
from finitune.causes.missing_nonfinite_guard import weigh
from finitune.facts import Parallel, Precision

foresee = findings(missing_nonfinite_guard.foresee)

BRAIN = Precision(compute="bfloat16")


def zero(stage: int, check: bool | None = None) -> Parallel:
    return Parallel(kind="deepspeed", zero_stage=stage, check_grad_overflow=check, source="ds.json")


@pytest.mark.parametrize(
    ("parallel", "version", "severity"),
    [
        (zero(2), "0.16.9", "info"), (zero(1), "0.19.2", "info"), (zero(3), "0.19.7", "info"),
        (zero(2, check=False), "0.19.8", "warning"), (zero(3, check=True), "0.18.9", "info"),
        (zero(2, check=True), "0.16.9", "info"),
    ],
)  # fmt: skip
def test_fires_by_release_stage_and_key(parallel, version, severity):
    (finding,) = foresee(BRAIN, parallel, {"deepspeed": version})
    assert finding.severity == severity
    assert finding.where.key == "bf16.check_grad_overflow"


@pytest.mark.parametrize(
    ("precision", "parallel", "version"),
    [
        (BRAIN, zero(2), "0.19.3"), (BRAIN, zero(3), "0.19.8"), (BRAIN, zero(2, check=True), "0.17.6"),
        (Precision(compute="float16"), zero(2), "0.16.9"), (BRAIN, zero(0), "0.16.9"),
        (BRAIN, zero(3, check=False), "0.19.8"),
    ],
)  # fmt: skip
def test_stays_quiet(precision, parallel, version):
    assert not list(foresee(precision, parallel, {"deepspeed": version}))


def test_stays_quiet_as_a_cause_of_bad_numbers():
    assert sum(e.bits for e in weigh(BRAIN, zero(2), {"deepspeed": "0.16.9"}, {"nonfinite-loss"})) < 0
