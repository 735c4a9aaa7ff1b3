from finitune.finding import Cure, Finding
from finitune.remedies.change_settings import propose


def test_fires_with_the_patch_of_the_finding():
    cure = Cure(name="change-settings", safety="safe", patch={"num_generations": 8})
    assert propose(Finding(cause="rl-group-std-zero", severity="error", message="", remedy=cure)) is cure


def test_stays_quiet_about_what_nobody_named():
    assert propose().patch is None
