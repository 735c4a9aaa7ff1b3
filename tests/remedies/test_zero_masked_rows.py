import pytest

from finitune.finding import Origin
from finitune.remedies.zero_masked_rows import propose


def origin(padding):
    return Origin(module="layers.0", op="aten._softmax", phase="forward", dtype="float32", padding=padding)


@pytest.mark.parametrize("where", [None, origin(None), origin(True)])
def test_fires_where_pads_see_no_key(where):
    assert propose(origin=where) is not None


def test_stays_quiet_where_real_tokens_see_none():
    assert propose(origin=origin(False)) is None
