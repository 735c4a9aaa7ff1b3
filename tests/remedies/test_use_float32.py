from finitune.facts import Hardware, Precision, Training
from finitune.finding import Where
from finitune.remedies.use_float32 import propose

T4 = Hardware(name="T4", bfloat16=False)


def test_fires_where_the_card_has_nothing_else():
    assert propose(Precision(compute="float16", source="a.json: fp16"), T4).patch == {"bf16": False, "fp16": False}
    assert propose(Precision(compute="float16", source="z.json: fp16.enabled"), T4).patch == {
        "bf16.enabled": False, "fp16.enabled": False,
    }  # fmt: skip


def test_stays_quiet_where_bfloat16_would_do_or_nothing_is_known():
    assert propose(Precision(compute="float16"), Hardware(name="A100", bfloat16=True)) is None
    assert propose(Precision(compute="float16")) is None
    assert propose(None, T4) is None
    assert propose(Precision(compute="float16"), T4, where=Where(module="model.layers.3.mlp")) is None


def test_fires_in_the_words_of_torchtune_which_has_one_dtype():
    remedy = propose(Precision(compute="bfloat16"), T4, training=Training(framework="torchtune"))
    assert remedy.patch == {"dtype": "float32"}
