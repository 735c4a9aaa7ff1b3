import pytest

from finitune.causes.packing_mask_leak import foresee, weigh
from finitune.facts import Attention, Batching, Optimizer

SDPA = Attention(implementation="sdpa")
PACKED = Batching(packing=True, source="a.yaml")


@pytest.mark.parametrize("attention", [SDPA, Attention(implementation="eager")])
def test_fires_for_packing_without_lengths(attention):
    (finding,) = foresee(Optimizer(), PACKED, attention)
    assert finding.severity == "info"
    assert (finding.where.file, finding.where.key) == ("a.yaml", "packing")


@pytest.mark.parametrize(
    ("batching", "attention"),
    [
        (PACKED, Attention(implementation="flash_attention_2")), (PACKED, None), (Batching(packing=False), SDPA),
        (Batching(), SDPA), (None, SDPA),
    ],
)  # fmt: skip
def test_stays_quiet(batching, attention):
    assert not list(foresee(Optimizer(), batching, attention))


def test_stays_quiet_after_a_non_finite_step():
    assert sum(e.bits for e in weigh(PACKED, SDPA, {"nonfinite-loss"})) < 0
