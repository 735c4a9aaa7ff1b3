"""What is done by hand where no run forgets them by itself."""

from finitune.chapter import remedies
from finitune.remedies.reset_moments import propose


def test_fires_with_what_to_do_by_hand():
    assert "without the optimizer's state" in propose().text
    assert remedies()["reset-moments"].safety == "unsafe"


def test_stays_quiet_about_configurations():
    assert propose().patch is None
    assert propose().command is None
