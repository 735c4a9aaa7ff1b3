from finitune.finding import Finding
from finitune.remedies.match_settings import propose


def test_fires_with_auto_for_a_deepspeed_key():
    finding = Finding(cause="x", severity="error", message="", evidence={"auto_key": "bf16.enabled"})
    assert propose(finding).patch == {"fp16.enabled": "auto", "bf16.enabled": "auto"}


def test_stays_quiet_about_the_value_where_only_the_user_can_know():
    assert propose().patch is None
