from finitune.chapter import causes, proposed
from finitune.facts import Training


def test_fires_with_the_patch_of_the_finding():
    (finding,) = causes()["rl-group-std-zero"].ask("foresee", {"training": Training(generations=1)}).results
    assert (finding.remedy.name, finding.remedy.safety) == ("change-settings", "advice")
    assert finding.remedy.patch == {"num_generations": 8}


def test_stays_quiet_without_a_finding():
    assert proposed(causes()["rl-group-std-zero"], {}) == []
