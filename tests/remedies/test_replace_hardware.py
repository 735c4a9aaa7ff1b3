from finitune.chapter import Chapter, proposed, remedies


def test_fires_as_advice_without_command_or_settings():
    (remedy,) = proposed(Chapter(name="x", module=type("M", (), {"remedies": ["replace-hardware"]})), {})
    assert (remedy.name, remedy.safety, remedy.command, remedy.patch) == ("replace-hardware", "advice", None, None)


def test_stays_quiet_about_how_to_write_it():
    """What is right only the user knows, so no file is written."""
    assert remedies()["replace-hardware"].function("apply") is None
