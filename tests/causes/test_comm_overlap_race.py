import pytest
from tests.causes.only import findings

from finitune.causes import comm_overlap_race
from finitune.causes.comm_overlap_race import weigh
from finitune.facts import Parallel, Precision

foresee = findings(comm_overlap_race.foresee)

BRAIN = Precision(compute="bfloat16")


def zero(stage: int = 2, overlap: bool | None = True, **more) -> Parallel:
    return Parallel(kind="deepspeed", zero_stage=stage, overlap_comm=overlap, source="ds.json", **more)


@pytest.mark.parametrize("version", ["0.12.4", "0.12.5", "0.14.0", "0.14.2", "0.14.2+cu121"])
@pytest.mark.parametrize("stage", [1, 2])
def test_fires_for_the_releases_that_were_bisected(version, stage):
    (finding,) = foresee(BRAIN, zero(stage), {"deepspeed": version})
    assert finding.severity == "error"
    assert (finding.where.file, finding.where.key) == ("ds.json", "zero_optimization.overlap_comm")
    assert version in finding.message


@pytest.mark.parametrize(
    ("parallel", "severity"),
    [(zero(), "info"), (zero(reduce_bucket_size=50_000_000), "warning"), (zero(nodes=4), "warning")],
)
def test_fires_more_softly_for_later_releases(parallel, severity):
    (finding,) = foresee(BRAIN, parallel, {"deepspeed": "0.16.4"})
    assert finding.severity == severity


@pytest.mark.parametrize(
    ("parallel", "version"),
    [
        (zero(3), "0.12.5"), (zero(overlap=False), "0.12.5"), (zero(overlap=None), "0.12.5"), (zero(), "0.17.5"),
        (zero(), "0.19.8"), (Parallel(kind="ddp"), "0.12.5"),
    ],
)  # fmt: skip
def test_stays_quiet(parallel, version):
    assert not list(foresee(BRAIN, parallel, {"deepspeed": version}))


def test_stays_quiet_without_a_version():
    assert not list(foresee(BRAIN, zero()))


def test_fires_after_a_run_only_where_the_step_does_not_repeat():
    version = {"deepspeed": "0.12.5"}
    assert sum(e.bits for e in weigh(zero(), version, repeats=False)) > 5
    assert sum(e.bits for e in weigh(zero(), version, repeats=True)) < 0
    assert sum(e.bits for e in weigh(zero(3), version, repeats=False)) < 0


def test_fires_for_a_reduction_that_was_compared():
    """In any loop: what a rank computes repeats, what the ranks averaged is something else."""
    race = {"reduction": {"worst": 0.43, "repeats": True}}
    assert sum(e.bits for e in weigh(incident=race)) == 6
    assert sum(e.bits for e in weigh(incident={"reduction": {"worst": 0.43, "repeats": False}})) < 5
    assert sum(e.bits for e in weigh(zero(), repeats=False, incident=race)) >= 12


def test_stays_quiet_where_nothing_was_compared_and_nothing_is_known_of_the_ranks():
    assert list(weigh(incident={"reduction": None})) == []
