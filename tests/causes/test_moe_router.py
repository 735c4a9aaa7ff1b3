from finitune.causes.moe_router import foresee
from finitune.facts import Model


def test_fires_on_one_expert_whose_weight_is_divided_by_itself():
    (finding,) = foresee(Model(family="qwen3_moe", experts=8, experts_per_token=1, renormalised=True))
    assert finding.severity == "warning"
    assert list(foresee(Model(family="mixtral", experts=8, experts_per_token=1)))


def test_stays_quiet_on_two_experts_and_where_nothing_is_divided():
    for model in (
        Model(family="mixtral", experts=8, experts_per_token=2),
        Model(family="llama4", experts=16, experts_per_token=1),  # its gate is a sigmoid
        Model(family="qwen3_moe", experts=8, experts_per_token=1, renormalised=False),
        Model(family="llama", experts_per_token=1),
    ):
        assert not list(foresee(model))
