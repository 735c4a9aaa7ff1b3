"""Where nothing is known of a run, a remedy that is safe says what to do, and patches no setting."""

import pytest

from finitune.chapter import remedies


@pytest.mark.parametrize("name", [name for name, chapter in remedies().items() if chapter.safety == "safe"])
def test_stays_quiet_about_settings_that_nobody_saw(name):
    assert not any(remedy.patch for remedy in remedies()[name].ask("propose", {}).results)
