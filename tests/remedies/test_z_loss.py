from finitune.chapter import causes, remedies
from finitune.remedies.z_loss import propose


def test_fires_in_the_book_alone():
    assert "z-loss" in causes()["lr-too-high"].declared("remedies")
    assert remedies()["z-loss"].safety == "advice"


def test_stays_quiet_for_every_run():
    assert propose() is None
