from finitune.facts import Batching, Training
from finitune.remedies.pad_right import propose


def test_fires_for_left_padding():
    assert propose(Batching(padding_side="left")).patch == {"padding_side": "right"}


def test_stays_quiet_where_the_framework_always_pads_on_the_left():
    assert propose(Batching(padding_side="left"), Training(framework="ludwig")) is None


def test_stays_quiet_for_right_padding():
    assert propose(Batching(padding_side="right")) is None


def test_stays_quiet_for_rows_that_are_masked_as_a_whole():
    assert propose(Batching(padded_rows=1)) is None
