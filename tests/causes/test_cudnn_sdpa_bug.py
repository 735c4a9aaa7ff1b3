import pytest
from tests.causes.only import findings

from finitune.causes import cudnn_sdpa_bug
from finitune.causes.cudnn_sdpa_bug import weigh
from finitune.facts import Attention, Batching, Hardware
from finitune.finding import Origin

foresee = findings(cudnn_sdpa_bug.foresee)

H100 = Hardware(name="H100", bfloat16=True)
SDPA = Attention(implementation="sdpa", source="a.yaml")


@pytest.mark.parametrize("attention", [None, SDPA])
@pytest.mark.parametrize("card", ["H100", "NVIDIA H100 80GB HBM3", "GH200", "H20"])
def test_fires_for_the_first_release_on_hopper(attention, card):
    (finding,) = foresee(Hardware(name=card, bfloat16=True), {"torch": "2.5.0+cu124"}, attention)
    assert finding.severity == "warning"
    assert finding.evidence["fixed_in"] == "2.5.1"


def test_fires_softly_for_the_later_defect_and_its_lengths():
    (finding,) = foresee(H100, {"torch": "2.13.0"}, SDPA, Batching(max_length=1088))
    assert finding.severity == "info"


@pytest.mark.parametrize(
    ("hardware", "version", "attention", "batching"),
    [
        (H100, "2.5.1", None, None), (H100, "2.4.1", None, None), (H100, "2.13.0", None, None),
        (H100, "2.13.0", SDPA, Batching(max_length=1024)), (H100, "2.13.0", SDPA, None),
        (Hardware(name="A100", bfloat16=True), "2.5.0", None, None),
        (H100, "2.5.0", Attention(implementation="flash_attention_2"), None),
        (H100, "2.5.0", Attention(implementation="eager"), None),
    ],
)  # fmt: skip
def test_stays_quiet(hardware, version, attention, batching):
    assert not list(foresee(hardware, {"torch": version}, attention, batching))


def test_fires_after_a_run_for_the_operator_itself():
    bad = Origin(module="a", op="aten._scaled_dot_product_cudnn_attention_backward", phase="backward", dtype="bfloat16")
    assert sum(e.bits for e in weigh(bad, {"torch": "2.5.0"}, H100)) > 8
    other = Origin(module="a", op="aten.mul", phase="forward", dtype="float16")
    assert sum(e.bits for e in weigh(other, {"torch": "2.5.0"}, H100)) < 0
