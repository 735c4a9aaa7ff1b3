from finitune.casebook import diagnose_case
from finitune.cause import causes
from finitune.diagnosis import told_evidence

CASE = {"log": ["WARNING: empty target in batch 7"], "config": {"note": "fails at the same step with a fixed order"}}


def test_fires_on_a_case_that_tells_of_it():
    (incident,) = diagnose_case(CASE).incidents
    assert "bad-data-sample" in [cause.cause for cause in incident.causes[:1]]


def test_stays_quiet_where_nobody_speaks_of_it():
    (incident,) = diagnose_case(
        {"config": {"learning_rate": 2e-05, "bf16": True}, "log": ["{'loss': 1.2, 'grad_norm': 0.5}"]}
    ).incidents
    assert "bad-data-sample" not in [cause.cause for cause in incident.causes if cause.bits > 0]
    assert told_evidence(causes()["bad-data-sample"], {}) == []
