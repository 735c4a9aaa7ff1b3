from finitune.chapter import causes, remedies
from finitune.remedies.rescale_updates import propose


def test_fires_in_the_book_alone():
    assert "rescale-updates" in causes()["lr-too-high"].declared("remedies")
    assert remedies()["rescale-updates"].safety == "advice"


def test_stays_quiet_for_every_run():
    assert propose() is None
