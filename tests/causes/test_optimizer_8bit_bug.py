import pytest
from tests.causes.only import findings

from finitune.causes import optimizer_8bit_bug
from finitune.causes.optimizer_8bit_bug import weigh
from finitune.facts import Optimizer

foresee = findings(optimizer_8bit_bug.foresee)


@pytest.mark.parametrize("version", ["0.36.0", "0.39.1", "0.41.0", "0.41.0.post2"])
@pytest.mark.parametrize("name", ["adamw_bnb_8bit", "paged_adamw_8bit", "AdamW8bit"])
def test_fires_in_the_range(version, name):
    (finding,) = foresee(Optimizer(name=name, source="a.json"), {"bitsandbytes": version})
    assert finding.severity == "warning"
    assert finding.evidence["fixed_in"] == "0.41.1"
    assert sum(e.bits for e in weigh(Optimizer(name=name), {"bitsandbytes": version})) > 0


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("adamw_bnb_8bit", "0.35.0"), ("adamw_bnb_8bit", "0.41.1"), ("adamw_bnb_8bit", "0.48.2"),
        ("adamw_torch", "0.39.0"), ("paged_adamw_32bit", "0.39.0"),
    ],
)  # fmt: skip
def test_stays_quiet(name, version):
    assert not list(foresee(Optimizer(name=name), {"bitsandbytes": version}))
    assert sum(e.bits for e in weigh(Optimizer(name=name), {"bitsandbytes": version})) < 0


def test_stays_quiet_without_bitsandbytes():
    for name, versions in (("adamw_bnb_8bit", {"torch": "2.6.0"}), (None, {"bitsandbytes": "0.39.0"})):
        assert not list(foresee(Optimizer(name=name), versions))
        assert not list(weigh(Optimizer(name=name), versions)), "what is not known weighs nothing"
