"""Another kernel is named where attention has one."""

import pytest

from finitune.facts import Attention, Training
from finitune.remedies.math_attention import propose


@pytest.mark.parametrize("attention", [None, Attention(implementation="flash_attention_2")])
def test_fires_where_a_kernel_computes_attention(attention):
    assert propose(attention, Training()).patch == {"attn_implementation": "eager"}


def test_stays_quiet_where_attention_is_plain_already():
    assert propose(Attention(implementation="eager")) is None
