from finitune.remedies.replace_hardware import propose


def test_fires_as_advice():
    assert propose().safety == "advice"


def test_stays_quiet_about_commands_and_settings():
    assert propose().command is None
    assert propose().patch is None
