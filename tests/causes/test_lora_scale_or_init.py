import numpy as np
import pytest

from finitune.causes.lora_scale_or_init import foresee, weigh
from finitune.facts import Adapter, Optimizer
from finitune.series import Series


def lora(rank: int, alpha: float, **more) -> Adapter:
    return Adapter(kind="lora", rank=rank, alpha=alpha, source="a.yaml", **more)


def series(*values: float) -> Series:
    return Series(steps=np.arange(len(values)), values=np.array(values, float))


def test_fires_for_a_rate_that_the_scale_multiplies():
    (finding,) = foresee(Optimizer(lr=5e-4), lora(8, 256))
    assert finding.severity == "warning"
    assert finding.evidence["scale"] == 32
    assert finding.where.key == "lora_alpha"


def test_fires_for_an_adapter_that_adds_nothing():
    (finding,) = foresee(Optimizer(lr=5e-4), lora(8, 0))
    assert finding.severity == "error"


@pytest.mark.parametrize(
    ("lr", "adapter"),
    [
        (2e-4, lora(16, 32)), (2e-4, lora(64, 16)), (5e-4, lora(8, 128)), (2e-4, lora(64, 64, rank_stabilised=True)),
        (1e-2, lora(8, 16)), (None, lora(8, 16)), (2e-4, Adapter(kind="lora")), (2e-4, Adapter(kind="none")),
    ],
)  # fmt: skip
def test_stays_quiet(lr, adapter):
    assert not list(foresee(Optimizer(lr=lr), adapter))


def test_fires_after_a_run_whose_loss_climbed():
    assert sum(e.bits for e in weigh(lora(8, 256), Optimizer(lr=5e-4), series(1, 2, 6))) > 0
    assert sum(e.bits for e in weigh(lora(8, 256), Optimizer(lr=5e-4), series(2, 2, 2))) < 0
    assert sum(e.bits for e in weigh(lora(8, 16), Optimizer(lr=2e-4), series(1, 2, 6))) < 0
    assert len([*weigh(lora(8, 256), Optimizer(lr=5e-4), series(-0.1, 1e-6, 3e-3))]) == 1, (
        "a loss about zero climbs not"
    )
