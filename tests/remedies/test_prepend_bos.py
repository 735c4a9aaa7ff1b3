from finitune.remedies import prepend_bos as chapter


def test_fires_as_advice_with_the_setting():
    remedy = chapter.propose()
    assert chapter.safety == "advice"
    assert remedy.patch == {"add_bos_token": True}


def test_stays_quiet_about_files():
    assert chapter.propose().command is None
    assert not hasattr(chapter, "apply")
