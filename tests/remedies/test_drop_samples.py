from finitune.finding import Origin
from finitune.remedies.drop_samples import propose


def test_fires_where_the_batch_itself_is_bad():
    assert propose(origin=Origin(module=None, op="input", phase="input", dtype="float32")) is not None


def test_stays_quiet_where_a_weight_is():
    assert propose(origin=Origin(module="fc", op="parameter", phase="parameter", dtype="float32")) is None
