import numpy as np
import pytest

from finitune.causes.missing_gradient_clipping import foresee, weigh
from finitune.facts import Optimizer, Precision
from finitune.series import Series


def series(*values: float) -> Series:
    return Series(steps=np.arange(len(values)), values=np.array(values, float))


@pytest.mark.parametrize(
    ("precision", "severity"),
    [(Precision(compute="float16"), "warning"), (Precision(compute="bfloat16"), "info"), (None, "info")],
)
def test_fires_by_how_much_room_a_spike_has(precision, severity):
    (finding,) = foresee(Optimizer(clip=0.0, source="a.json"), precision)
    assert finding.severity == severity
    assert finding.where.key == "max_grad_norm"


@pytest.mark.parametrize("clip", [1.0, 0.3, None])
def test_stays_quiet(clip):
    assert not list(foresee(Optimizer(clip=clip), Precision(compute="float16")))


def test_fires_after_a_run_only_with_a_spike():
    assert sum(e.bits for e in weigh(series(1, 1, 1, 1, 1, 1, 1, 90), Optimizer(clip=0.0))) > 0
    assert sum(e.bits for e in weigh(series(1, 1, 1, 1, 1, 1, 1, 1), Optimizer(clip=0.0))) < 0
    assert sum(e.bits for e in weigh(series(1, 1, 1, 1, 1, 1, 1, 90), Optimizer(clip=1.0))) < 0


def test_fires_in_a_run_that_was_watched_by_what_it_clipped():
    seen, norms = {"optimizer": "SGD"}, series(1, 1, 1, 1, 1, 1, 1, 900)
    assert sum(e.bits for e in weigh(norms, incident=seen)) > 6
    assert sum(e.bits for e in weigh(norms, incident=seen, clip_factor=series(1, 1, 1, 1, 1, 1, 1, 0.01))) < 0
    assert not list(weigh(norms, incident={}))


@pytest.mark.parametrize(
    ("lr", "lora", "severity"), [(2e-4, False, "warning"), (2e-4, True, "info"), (1e-5, False, "info")]
)
def test_fires_the_louder_the_higher_the_rate(lr, lora, severity):
    assert [f.severity for f in foresee(Optimizer(clip=0.0, lr=lr, lora=lora))] == [severity]
