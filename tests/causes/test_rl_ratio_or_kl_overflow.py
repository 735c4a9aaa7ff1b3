from finitune.chapter import causes
from finitune.diagnosis.cases import diagnose_case
from finitune.diagnosis.ranking import told_evidence

CASE = {"framework": "TRL GRPO", "config": {"kl_coef": 0.1, "note": "importance ratio explodes"}}


def test_fires_on_a_case_that_tells_of_it():
    (incident,) = diagnose_case(CASE).incidents
    assert "rl-ratio-or-kl-overflow" in [cause.cause for cause in incident.causes[:1]]


def test_stays_quiet_where_nobody_speaks_of_it():
    (incident,) = diagnose_case(
        {"config": {"learning_rate": 2e-05, "bf16": True}, "log": ["{'loss': 1.2, 'grad_norm': 0.5}"]}
    ).incidents
    assert "rl-ratio-or-kl-overflow" not in [cause.cause for cause in incident.causes if cause.bits > 0]
    assert told_evidence(causes()["rl-ratio-or-kl-overflow"], {}) == []
