from finitune.finding import Finding
from finitune.remedies.upgrade_package import propose


def test_fires_with_the_first_sound_release():
    finding = Finding(
        cause="x", severity="warning", message="", evidence={"package": "deepspeed", "fixed_in": "0.14.3"}
    )
    assert propose(finding).command == "pip install 'deepspeed>=0.14.3'"


def test_stays_quiet_about_the_command_when_no_release_is_known():
    assert propose().command is None
