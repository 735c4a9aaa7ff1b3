from finitune.facts import Batching
from finitune.finding import Finding, Origin
from finitune.remedies.pack_rows import propose


def finding(*, padding):
    return Finding(
        cause="fp16-activation-overflow", severity="warning", message="token 0 pads", evidence={"padding": padding}
    )


def origin(*, padding):
    return Origin(module="model.layers.2.mlp", op="aten.mul", phase="forward", dtype="float16", padding=padding)


def test_fires_where_padding_overflows():
    for remedy in (propose(finding=finding(padding=True)), propose(origin=origin(padding=True))):
        assert remedy is not None
        assert remedy.patch == {"packing": True}


def test_stays_quiet_where_it_is_not_padding_or_rows_are_packed():
    assert propose() is None
    assert propose(finding=finding(padding=False)) is None
    assert propose(origin=origin(padding=None)) is None
    assert propose(finding=finding(padding=True), batching=Batching(packing=True)) is None
