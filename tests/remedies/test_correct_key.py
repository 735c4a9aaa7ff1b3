from finitune.remedies.correct_key import propose


def test_fires_as_advice():
    assert propose().safety == "advice"


def test_stays_quiet_about_values_that_only_the_user_knows():
    assert propose().patch is None
