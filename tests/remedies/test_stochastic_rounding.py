from finitune.chapter import causes
from finitune.remedies.stochastic_rounding import propose


def test_fires_after_float32_copies():
    assert causes()["bf16-update-stagnation"].declared("remedies") == [
        "float32-trainable-weights",
        "stochastic-rounding",
    ]


def test_stays_quiet_for_the_files():
    assert propose() is None
