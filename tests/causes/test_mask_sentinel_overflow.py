from finitune.causes.mask_sentinel_overflow import weigh
from finitune.finding import Origin


def seen(**more) -> Origin:
    given = {"op": "aten.add", "phase": "forward", "dtype": "bfloat16", "values": "9 -inf", "peak": 3.3895e38}
    return Origin(module=None, **{**given, **more})


def bits(origin: Origin) -> float:
    return sum(term.bits for term in weigh(origin))


def test_fires_where_two_sentinels_add_up():
    assert bits(seen()) > 6
    assert bits(seen(dtype="float16", peak=65504.0)) > 6
    assert bits(seen(dtype="float32", peak=3.4028e38)) > 6
    assert bits(seen(dtype="float32", peak=1.0014e38)) > 6, "1e38 in bfloat16"
    assert bits(seen(dtype="float16", peak=6e4)) > 6


def test_stays_quiet_about_other_overflows():
    assert bits(seen(peak=100.0)) < 6, "numbers that are no sentinel"
    assert bits(seen(dtype="float32", op="aten.mul", peak=3.27e38)) <= 0, "a state that grows by a factor"
    for other in (seen(values="9 nan"), seen(values="9 inf, 1 -inf"), seen(op="aten.mm"), seen(phase="backward")):
        assert bits(other) < 0
