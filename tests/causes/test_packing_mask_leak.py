import pytest
from tests.causes.only import findings

from finitune.causes import packing_mask_leak
from finitune.causes.packing_mask_leak import weigh
from finitune.facts import Attention, Batching

foresee = findings(packing_mask_leak.foresee)

SDPA = Attention(implementation="sdpa")
PACKED = Batching(packing=True, source="a.yaml")


@pytest.mark.parametrize("attention", [SDPA, Attention(implementation="eager")])
def test_fires_for_packing_without_lengths(attention):
    (finding,) = foresee(PACKED, attention)
    assert finding.severity == "info"
    assert (finding.where.file, finding.where.key) == ("a.yaml", "packing")


@pytest.mark.parametrize(
    ("batching", "attention"),
    [
        (PACKED, Attention(implementation="flash_attention_2")), (PACKED, None), (Batching(packing=False), SDPA),
        (Batching(), SDPA),
    ],
)  # fmt: skip
def test_stays_quiet(batching, attention):
    assert not list(foresee(batching, attention))


def test_stays_quiet_after_a_non_finite_step():
    assert sum(e.bits for e in weigh(PACKED, SDPA, {"nonfinite-loss"})) < 0
