from finitune.chapter import causes, proposed, remedies


def test_fires_as_advice_for_a_step_that_does_not_repeat():
    names = [remedy.name for remedy in proposed(causes()["hardware-fault-sdc"], {})]
    assert names[:2] == ["replace-hardware", "recompute-step"]


def test_stays_quiet_about_files():
    chapter = remedies()["recompute-step"]
    assert (chapter.safety, chapter.function("apply"), chapter.function("propose")) == ("advice", None, None)
