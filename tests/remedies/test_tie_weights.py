from finitune.facts import Adapter
from finitune.remedies.tie_weights import propose


def test_fires_for_an_adapter_with_its_own_key():
    assert propose(Adapter(kind="lora")).patch == {"ensure_weight_tying": True}


def test_stays_quiet_about_adapters_where_there_is_none():
    assert propose().patch == {"tie_word_embeddings": False}
