import numpy as np
import pytest
from tests.causes.only import findings

from finitune.causes import lr_schedule_mismatch
from finitune.causes.lr_schedule_mismatch import weigh
from finitune.facts import Batching, Optimizer, Parallel, TokenUse
from finitune.series import Series

foresee = findings(lr_schedule_mismatch.foresee)

DATA = TokenUse(ids=np.array([1]), counts=np.array([1]), first=np.array([1]), sequences=320, source="data.jsonl")


def run(**more) -> Optimizer:
    return Optimizer(**{"lr": 1e-5, "source": "args.json", **more})


@pytest.mark.parametrize(("warm", "severity", "said"), [(1000, "warning", "20%"), (150, "info", "over half")])
def test_fires_for_a_warm_up_longer_than_the_run(warm, severity, said):
    (finding,) = foresee(run(warmup_steps=warm, max_steps=200))
    assert finding.severity == severity
    assert said in finding.message
    assert finding.remedy.patch == {"warmup_steps": 6}


@pytest.mark.parametrize(("share", "found"), [(0.9, 1), (0.5, 0), (0.03, 0), (1.5, 0), (None, 0)])
def test_fires_for_a_warm_up_over_most_of_the_run(share, found):
    assert len(list(foresee(run(warmup_ratio=share)))) == found


def test_fires_with_steps_counted_from_the_data():
    optimizer = run(warmup_steps=500, batch=4, accumulation=4, epochs=3)
    (finding,) = foresee(optimizer, DATA, Parallel(world=2))
    assert finding.evidence["steps"] == 30
    assert "320 rows, 32 a step" in finding.message


def test_fires_for_a_schedule_that_ends_before_the_run():
    (finding,) = foresee(run(schedule_steps=500, max_steps=1000))
    assert "after 500 steps" in finding.message


@pytest.mark.parametrize(
    ("optimizer", "batching"),
    [
        (run(warmup_steps=10, max_steps=200), None),
        (run(warmup_steps=1000), None),
        (run(warmup_steps=1000, max_steps=-1), None),
        (run(warmup_steps=0, max_steps=200), None),
        (run(schedule_steps=1000, max_steps=1000), None),
        (run(warmup_steps=500, batch=4, epochs=3), Batching(packing=True)),
        (run(max_steps=1000), None),
    ],
)
def test_stays_quiet(optimizer, batching):
    assert not list(foresee(optimizer, DATA, Parallel(world=2), batching))


def test_weighs_against_a_rate_that_was_reached():
    lr = Series(steps=np.arange(2), values=np.array([0.0, 1e-5]))
    assert sum(e.bits for e in weigh(run(), lr, set())) < 0
