from finitune.causes.moe_router import foresee
from finitune.chapter import causes
from finitune.diagnosis.cases import diagnose_case
from finitune.diagnosis.ranking import told_evidence
from finitune.facts import Model

CASE = {"model": "Mixtral-8x7B", "config": {"router_dtype": "bf16", "norm_topk_prob": True}}


def test_fires_on_a_case_that_tells_of_it():
    (incident,) = diagnose_case(CASE).incidents
    assert "moe-router" in [cause.cause for cause in incident.causes[:1]]


def test_stays_quiet_where_nobody_speaks_of_it():
    (incident,) = diagnose_case(
        {"config": {"learning_rate": 2e-05, "bf16": True}, "log": ["{'loss': 1.2, 'grad_norm': 0.5}"]}
    ).incidents
    assert "moe-router" not in [cause.cause for cause in incident.causes if cause.bits > 0]
    assert told_evidence(causes()["moe-router"], {}) == []


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
