from finitune.facts import Adapter, Optimizer, Precision
from finitune.remedies.float32_trainable_weights import propose

HALF = Precision(parameters="float16")


def test_fires_for_full_fine_tuning_with_the_load_dtype():
    assert propose(Optimizer(lora=False), precision=HALF).patch == {"dtype": "float32"}


def test_fires_for_an_adapter_with_the_adapter_alone():
    assert propose(adapter=Adapter(kind="lora"), precision=HALF).patch == {"autocast_adapter_dtype": True}


def test_stays_quiet_about_adapters_where_there_is_none():
    assert propose(adapter=Adapter(kind="none"), precision=HALF).patch == {"dtype": "float32"}


def test_fires_with_the_load_dtype_where_modules_are_trained_in_full_beside_the_adapter():
    beside = Adapter(kind="lora", trainable=["embed_tokens"])
    assert propose(adapter=beside, precision=HALF).patch == {"dtype": "float32"}
