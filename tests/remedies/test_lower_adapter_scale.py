from finitune.facts import Adapter
from finitune.remedies.lower_adapter_scale import propose


def test_fires_with_twice_the_rank():
    assert propose(Adapter(kind="lora", rank=8, alpha=512.0)).patch == {"lora_alpha": 16}


def test_stays_quiet_when_the_rank_is_not_known():
    assert propose() is None
