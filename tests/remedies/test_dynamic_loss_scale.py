from finitune.facts import Precision
from finitune.remedies.dynamic_loss_scale import propose


def test_fires_in_the_spelling_of_deepspeed():
    assert propose(Precision(compute="float16")).patch["fp16.loss_scale"] == 0


def test_stays_quiet_without_float16():
    assert propose(Precision(compute="bfloat16")) is None
    assert propose() is None
