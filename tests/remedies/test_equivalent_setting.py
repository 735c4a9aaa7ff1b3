from finitune.chapter import causes, proposed
from finitune.facts import Training


def test_fires_with_the_patch_of_the_finding():
    (finding,) = causes()["logging-hides-nan"].ask("foresee", {"training": Training(nan_filter=True)}).results
    assert (finding.remedy.name, finding.remedy.safety) == ("equivalent-setting", "safe")
    assert finding.remedy.patch == {"logging_nan_inf_filter": False}


def test_stays_quiet_without_a_finding():
    assert proposed(causes()["logging-hides-nan"], {}) == []
