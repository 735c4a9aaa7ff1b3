from finitune.remedies.match_vocabulary import propose


def test_fires_as_advice():
    assert propose().safety == "advice"


def test_stays_quiet_about_settings():
    assert propose().patch is None
