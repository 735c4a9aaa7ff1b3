import pytest

from finitune.facts import Attention
from finitune.finding import Origin, Where
from finitune.remedies.fused_attention import propose


def origin(module: str, op: str) -> Origin:
    return Origin(module=module, op=op, phase="forward", dtype="float16")


def test_fires_for_a_product_inside_attention_and_where_one_is_foretold():
    assert propose(origin("model.layers.0.self_attn", "aten.bmm")).patch == {"attn_implementation": "sdpa"}
    assert propose(where=Where(module="model.layers.0.self_attn")) is not None


@pytest.mark.parametrize(
    ("where_from", "attention"),
    [
        (origin("model.layers.0.mlp.down_proj", "aten.mm"), None),
        (origin("model.layers.0.self_attn.q_proj", "aten.addmm"), None),
        (origin("model.layers.0.self_attn", "aten.bmm"), Attention(implementation="sdpa")),
    ],
)
def test_stays_quiet(where_from, attention):
    assert propose(where_from, attention=attention) is None
